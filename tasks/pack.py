"""Stage pack: the training and validation splits as token stores (the test split is read as text)."""

from plm_core.corpus.document import pieces_of
from plm_core.files import verify_checksums
from plm_core.shared import paths
from plm_core.text.encoding import encode_part, join_parts
from plm_core.text.tokenizers import open_tokenizer
from tasks.runtime.pools import pool
from tasks.runtime.stage import main, stage


def pack() -> None:
    """Write one token store per split."""
    inputs = [paths.CORPUS / "train.parquet", paths.CORPUS / "valid.parquet", paths.TOKENIZER]
    with stage("pack", [], inputs) as run, pool(run) as workers:
        verify_checksums(paths.TOKENIZER)
        tokenizer = open_tokenizer(paths.TOKENIZER)
        for name in ("train", "valid"):
            items = [(*piece, paths.TOKENIZER) for piece in pieces_of(paths.CORPUS / f"{name}.parquet")]
            index = join_parts(paths.TOKENS / name, workers.map(name, encode_part, items), tokenizer)
            run.metrics[f"{name}_tokens"] = index.tokens
            print(f"{name}: {index.documents} documents, {index.tokens:,} tokens as {index.dtype}")
        run.outputs.append(paths.TOKENS)


if __name__ == "__main__":
    main(pack)
