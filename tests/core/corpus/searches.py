"""The search for duplicates as a test calls it: texts in one or more parts, in a folder of their own."""

from pathlib import Path

from plm_core.corpus.minhash import Duplicates, find_duplicates, write_index
from plm_core.corpus.pool import Pool
from plm_core.sections.deduplicate import Similarity


def search(texts: list[str], folder: Path, similarity: Similarity, parts: int = 1) -> Duplicates:
    """What is found among the texts when they are indexed in so many parts of about one length."""
    for part in range(parts):
        index = folder / f"indexes/{part:06d}"
        index.mkdir(parents=True)
        write_index(texts[len(texts) * part // parts : len(texts) * (part + 1) // parts], similarity, index)
    return find_duplicates(folder / "indexes", similarity, Pool(folder / "pool", 1))
