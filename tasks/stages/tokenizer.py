"""Stage tokenizer: trains a tokenizer on the training split, or takes a given one or that of the models that carry on,
and measures its vocabulary.

`python -m tasks.stages.tokenizer <name>`
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from plm_core.config import UserError
from plm_core.corpus.document import Piece, Texts, read_documents, sample_row_groups
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder
from plm_core.text.replay import keys_of
from plm_core.text.tokenizer_kinds import open_tokenizer, read_tokenizer, train_tokenizer
from plm_core.text.tokenizers import Tokenizer, TokenizerConfig
from plm_core.text.vocabulary_quality import (
    comparison_words,
    costly_words,
    fertility_growth,
    measure,
    sample,
    split_word,
)
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage


def tokenizer(name: str) -> None:
    """Read section ``tokenizers.NAME`` and write the tokenizer's folder."""
    section = f"tokenizers.{name}"
    config = stage_parameters.section(section, TokenizerConfig)
    target = paths.TOKENIZERS / name
    corpus = paths.CORPUS / "train.parquet"
    held_out = paths.CORPUS / "valid.parquet"
    kept = [paths.KEPT_TOKENIZERS] if paths.KEPT_TOKENIZERS.exists() else []  # by hand, a tokenizer needs no ancestors
    with stage(f"tokenizer-{name}", [section], [corpus, held_out, *kept]) as run:
        pieces, share = sample_row_groups(corpus, config.learned_bytes)
        texts = Texts(pieces)
        try:
            if config.given:
                made = open_tokenizer(Path(config.given.file))
                share = share if config.extend else 0.0
                if made.sha256 != config.given.sha256:
                    raise ValueError(
                        f"given.sha256: {config.given.file} is {made.sha256}; expected {config.given.sha256}"
                    )
                if config.extend:
                    from plm_core.text.vocabulary_extension import extend_tokenizer  # with torch

                    made = read_tokenizer(target / made.file, extend_tokenizer(made, texts, config.extend))
            elif (old := kept_tokenizer(paths.KEPT_TOKENIZERS / name, config, pieces)) is not None:
                made = old
                share = 0.0
            else:
                made = read_tokenizer(target, train_tokenizer(texts, config))
        except ValueError as error:
            raise UserError(f"{section}.{error}") from error
        with atomic_folder(target) as folder:
            (folder / made.file).write_bytes(made.data)
        seen = sample(texts)
        unseen = sample(Texts(sample_row_groups(held_out, config.learned_bytes)[0]))
        run.metrics |= asdict(measure(made, seen, unseen)) | {"learned_share": share}
        run.outputs.append(target)
        kind = "given" if config.given else config.kind
        compression = f"{run.metrics['bytes_per_token']:.2f} bytes per token on held-out text"
        learned = f"; learned from {share:.2%} of the training text" if 0 < share < 1 else ""
        unknown = f"; {run.metrics['unknown_rate']:.2%} of its tokens are unknown" if not made.lossless else ""
        print(f"{name}: {kind}, {made.vocab_size} pieces, {compression}{unknown}{learned}")
        shown = [word for word, _ in costly_words(made, seen)] if config.given else comparison_words(unseen)
        for word in shown:
            print(f"  {word}: {split_word(made, word)}")


def kept_tokenizer(folder: Path, config: TokenizerConfig, pieces: list[Piece]) -> Tokenizer | None:
    """The tokenizer in a folder of ``paths.KEPT_TOKENIZERS``, if it has the section's kind and size and fits the text
    that is new to its model."""
    if not folder.is_dir():
        return None
    kept = open_tokenizer(folder)
    if (kept.kind, kept.vocab_size) != (config.kind, config.vocab_size):
        print(f"a new tokenizer: {folder} is {kept.kind} with {kept.vocab_size} pieces, and models begin anew")
        return None
    texts: dict[bool, list[str]] = {True: [], False: []}
    documents = [document for file, groups in pieces for document in read_documents(file, groups)]
    keys = keys_of((document.id, len(document.text.encode())) for document in documents)
    for document, is_read in zip(documents, np.isin(keys, np.load(folder / paths.READ)).tolist(), strict=True):
        texts[is_read].append(document.text)
    growth = fertility_growth(kept, texts[True], texts[False]) if all(texts.values()) else 1.0
    compared = f"new text takes {growth:.2f} times the tokens per byte"
    if growth > config.renew_above:
        print(f"a new tokenizer: with the old one {compared}; renew_above is {config.renew_above:g}; models begin anew")
        return None
    print(f"the tokenizer is kept: {compared}")
    return kept


if __name__ == "__main__":
    main(tokenizer)
