"""Stage tokenizer: a tokenizer trained on the training split, and measures of its vocabulary."""

from dataclasses import asdict
from pathlib import Path

from plm_core.config import UserError
from plm_core.corpus.document import Texts, some_of
from plm_core.files import atomic_folder
from plm_core.shared import paths
from plm_core.text.tokenizer import TokenizerConfig
from plm_core.text.tokenizers import open_tokenizer, read_tokenizer, train_tokenizer
from plm_core.text.vocabulary import measure, sample, split, telling_words
from tasks.runtime.stage import main, stage
from tasks.settings import params


def tokenizer() -> None:
    """Read section ``tokenizer``, write the tokenizer's folder."""
    config = params.section("tokenizer", TokenizerConfig)
    corpus = paths.CORPUS / "train.parquet"
    held_out = paths.CORPUS / "valid.parquet"
    with stage("tokenizer", ["tokenizer"], [corpus, held_out]) as run:
        pieces, share = some_of(corpus, config.learned_bytes)
        texts = Texts(pieces)
        if config.given:
            made = open_tokenizer(Path(config.given.file))
            share = 0.0
            if made.sha256 != config.given.sha256:
                raise UserError(
                    f"tokenizer.given.sha256: {config.given.file} is {made.sha256}; expected {config.given.sha256}"
                )
        else:
            made = read_tokenizer(paths.TOKENIZER, train_tokenizer(texts, config))
        with atomic_folder(paths.TOKENIZER) as folder:
            (folder / made.file).write_bytes(made.data)
        unseen = sample(Texts(some_of(held_out, config.learned_bytes)[0]))
        run.metrics |= asdict(measure(made, sample(texts), unseen)) | {"learned_share": share}
        run.outputs.append(paths.TOKENIZER)
        kind = "given" if config.given else config.kind
        compression = run.metrics["bytes_per_token"]
        learned = f"; learned from {share:.2%} of the training text" if 0 < share < 1 else ""
        unknown = f"; {run.metrics['unknown_rate']:.2%} of its tokens are unknown" if not made.lossless else ""
        print(f"{kind}, {made.vocab_size} pieces, {compression:.2f} bytes per token on held-out text{unknown}{learned}")
        for word in telling_words(unseen):
            print(f"  {word}: {split(made, word)}")


if __name__ == "__main__":
    main(tokenizer)
