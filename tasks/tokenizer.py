"""Stage tokenizer: a sentencepiece model trained on the training split."""

from pathlib import Path

from plm_core.config import BadInput
from plm_core.corpus.document import read_documents
from plm_core.files import atomic_folder
from plm_core.text.tokenizer import MODEL_FILE, GivenTokenizer, Tokenizer, TokenizerConfig, train_tokenizer
from tasks.seam import params, paths
from tasks.seam.stage import main, stage


def tokenizer() -> None:
    """Read section ``tokenizer``, write the tokenizer's folder."""
    config = params.section("tokenizer", TokenizerConfig)
    corpus = paths.CORPUS / "train.parquet"
    held_out = paths.CORPUS / "valid.parquet"
    with stage("tokenizer", ["tokenizer"], [corpus, held_out], paths.METRICS / "tokenizer.json") as run:
        if config.given:
            model = read_given(config.given)
        else:
            model = train_tokenizer((document.text for document in read_documents(corpus)), config)
        with atomic_folder(paths.TOKENIZER) as folder:
            (folder / MODEL_FILE).write_bytes(model)
        trained = Tokenizer(paths.TOKENIZER / MODEL_FILE)
        texts = [document.text for document in read_documents(held_out)]
        tokens = sum(len(ids) for ids in trained.encode_batch(texts))
        run.metrics["vocab_size"] = trained.vocab_size
        run.metrics["bytes_per_token"] = sum(len(text.encode()) for text in texts) / tokens
        run.outputs.append(paths.TOKENIZER)
        kind, compression = "given" if config.given else config.kind, run.metrics["bytes_per_token"]
        print(f"{kind}, {trained.vocab_size} pieces, {compression:.2f} bytes a token held out")


def read_given(given: GivenTokenizer) -> bytes:
    """The bytes of a tokenizer that is not to be trained.

    Raises:
        BadInput: it cannot be used as one, or it is not the file that ``sha256`` names.
    """
    tokenizer = Tokenizer(Path(given.file))
    if tokenizer.sha256 != given.sha256:
        raise BadInput(f"tokenizer.given.sha256: {given.file} is {tokenizer.sha256}; expected {given.sha256}")
    return tokenizer.path.read_bytes()


if __name__ == "__main__":
    main(tokenizer)
