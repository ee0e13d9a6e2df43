"""Stage pack: the training and validation splits as tokens (the test split is read as text).

`python -m tasks.stages.pack NAME`
"""

from plm_core.corpus.document import pieces_of
from plm_core.shared import paths
from plm_core.text.corpus_encoding import encode_part, join_parts
from plm_core.text.tokenizer_kinds import open_tokenizer
from tasks.runtime.stage import main, stage
from tasks.runtime.worker_pool import pool


def pack(name: str) -> None:
    """Write the tokens of tokenizer NAME, one store per split."""
    folder = paths.TOKENIZERS / name
    inputs = [paths.CORPUS / "train.parquet", paths.CORPUS / "valid.parquet", folder]
    with stage(f"pack-{name}", [], inputs) as run, pool(run) as workers:
        tokenizer = open_tokenizer(folder)
        for split in ("train", "valid"):
            items = [(*piece, folder) for piece in pieces_of(paths.CORPUS / f"{split}.parquet")]
            index = join_parts(
                paths.TOKENS / name / split, workers.map(split, encode_part, items, keep=True), tokenizer
            )
            run.metrics[f"{split}_tokens"] = index.tokens
            print(f"{split}: {index.documents} documents, {index.tokens:,} tokens as {index.dtype}")
        run.outputs.append(paths.TOKENS / name)


if __name__ == "__main__":
    main(pack)
