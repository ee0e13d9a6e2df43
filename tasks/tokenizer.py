"""Stage tokenizer: a sentencepiece model trained on the training split."""

from plm_core.corpus.document import read_documents
from plm_core.files import atomic_folder
from plm_core.text.tokenizer import MODEL_FILE, Tokenizer, TokenizerConfig, train_tokenizer
from tasks.seam import params, paths
from tasks.seam.stage import main, stage


def tokenizer() -> None:
    """Read section ``tokenizer``, write the tokenizer's folder."""
    config = params.section("tokenizer", TokenizerConfig)
    corpus = paths.CORPUS / "train.parquet"
    held_out = paths.CORPUS / "valid.parquet"
    with stage("tokenizer", ["tokenizer"], [corpus, held_out], paths.METRICS / "tokenizer.json") as run:
        model = train_tokenizer((document.text for document in read_documents(corpus)), config)
        with atomic_folder(paths.TOKENIZER) as folder:
            (folder / MODEL_FILE).write_bytes(model)
        trained = Tokenizer(paths.TOKENIZER / MODEL_FILE)
        texts = [document.text for document in read_documents(held_out)]
        tokens = sum(len(ids) for ids in trained.encode_batch(texts))
        run.metrics["vocab_size"] = trained.vocab_size
        run.metrics["bytes_per_token"] = sum(len(text.encode()) for text in texts) / tokens
        run.outputs.append(paths.TOKENIZER)
        print(
            f"{config.kind}, {trained.vocab_size} pieces, {run.metrics['bytes_per_token']:.2f} bytes a token held out"
        )


if __name__ == "__main__":
    main(tokenizer)
