"""Stage text-baseline: the likelihood of the held-out text without a neural model. `python -m tasks.text_baseline`.

Token frequencies, a 5-gram of the same tokens and the compressor PPMd learn from the training text that models read.
The 5-gram's likelihood, and what it says of minimal pairs, are evidence like the models', under the name ``ngram``:
``plm compare gpt ngram`` compares.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from pathlib import Path

import numpy as np

from plm_core.benchmarks.pairs import load_pairs
from plm_core.corpus.document import Document, read_documents
from plm_core.evaluation import minimal_pairs
from plm_core.evaluation.compression import bits_after
from plm_core.evaluation.evidence import LIKELIHOOD, LIKELIHOOD_COLUMNS, TASK_COLUMNS
from plm_core.evaluation.likelihood import named
from plm_core.evaluation.ngram import NGrams
from plm_core.files import atomic_folder, sha256_text
from plm_core.objectives import OBJECTIVES
from plm_core.sections.evaluation import EvaluateConfig
from plm_core.shared import paths
from plm_core.text.special import EOS
from plm_core.text.store import TokenStore
from plm_core.text.tokenizer import Tokenizer
from plm_core.text.tokenizers import open_tokenizer
from tasks.runtime.evidence import write_sealed
from tasks.runtime.stage import main, stage
from tasks.settings import params

ORDER = 5
MOST = 32 << 20
"""Bytes of training text that are learned from, in whole documents. They take about a gigabyte of memory."""
TEST, TRAIN = paths.CORPUS / "test.parquet", paths.CORPUS / "train.parquet"


def text_baseline() -> None:
    """Learn from the training text, measure on the test split and the minimal pairs; write evidence and metrics."""
    config = params.section("evaluate", EvaluateConfig)
    # What a failed stage did not leave is left out.
    pairs = [file for name in params.section_names("pairs") if (file := paths.PAIRS / f"{name}.jsonl").is_file()]
    inputs = [paths.TOKENIZER, paths.TOKENS, TRAIN, TEST, *pairs]
    with stage("text-baseline", ["evaluate", "pairs"], inputs) as run:
        tokenizer = open_tokenizer(paths.TOKENIZER)
        store = TokenStore(paths.TOKENS / "train")
        store.require(tokenizer)
        read = max(1, sum(1 for total in accumulate(store.bytes.tolist()) if total <= MOST))
        learned = np.concatenate(([EOS], store.tokens(0, int(store.offsets[read]))))
        documents = list(read_documents(TEST))
        ids = tokenizer.encode_batch([document.text for document in documents])
        sizes = [len(document.text.encode()) for document in documents]
        # That of models which predict each token from those before it.
        quantity = named(next(o.likelihood.name for o in OBJECTIVES.values() if o.perplexity), tokenizer)
        found = {}
        for order, name in ((1, f"unigram_{quantity}"), (ORDER, f"ngram_{quantity}")):
            model = NGrams(learned, order, store.index.vocab_size)
            nats = [float(part.sum()) for part in _nats(model, ids)]
            found[name] = sum(nats) / math.log(2) / sum(sizes)
        rows = zip(documents, sizes, ids, nats, strict=True)
        lines = ((d.id, sha256_text(d.text), b, len(i) + 1, repr(n), quantity, config.measured) for d, b, i, n in rows)
        with atomic_folder(paths.NGRAM, checksums=False) as new:
            write_sealed(new / LIKELIHOOD, LIKELIHOOD_COLUMNS, lines)
            for file in pairs:
                _write_pairs(new, file, model, tokenizer, config)
        text = _joined(documents)
        found["ppmd_bits_per_byte"] = bits_after(_joined(islice(read_documents(TRAIN), read)), text) / len(text)
        run.metrics |= found | {"train_documents": read, "bytes": sum(sizes)}
        run.outputs.append(paths.NGRAM)
        print(", ".join(f"{name.partition('_')[0]} {value:.4f}" for name, value in found.items()) + " bits per byte")


def _nats(model: NGrams, texts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The nats of each text's tokens, and of the EOS behind them."""
    nats = model.nats(np.concatenate([[EOS], *(np.append(ids, EOS) for ids in texts)]))
    ends = np.cumsum([len(ids) + 1 for ids in texts])
    return np.split(nats, ends[:-1])


def _write_pairs(folder: Path, file: Path, model: NGrams, tokenizer: Tokenizer, config: EvaluateConfig) -> None:
    """The evidence of a set of minimal pairs, whose texts are passages: no EOS counts."""
    pairs = load_pairs(file)
    ids = tokenizer.encode_batch([text for pair in pairs for text in (pair.good, pair.bad)])
    nats = [float(part[:-1].sum()) for part in _nats(model, ids)]
    rows = minimal_pairs.rows(pairs, zip(nats[::2], nats[1::2], strict=True), config)
    write_sealed(folder / minimal_pairs.file_of(file.stem), TASK_COLUMNS, rows)


def _joined(documents: Iterable[Document]) -> bytes:
    return "\n\n".join(document.text for document in documents).encode()


if __name__ == "__main__":
    main(text_baseline)
