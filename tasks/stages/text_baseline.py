"""Stage text-baseline: held-out likelihood without a neural model. `python -m tasks.stages.text_baseline <tokenizer>`.

Token frequencies, a 5-gram of the same tokens and the compressor PPMd learn from the training text that models read.
The 5-gram's likelihood and its answers to minimal pairs are evidence like the models', so ``plm compare gpt ngram-own``
works, where ``own`` is the tokenizer.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice

import numpy as np

from plm_core.benchmarks.pair_sets import load_pairs
from plm_core.configs.stage_configs import EvaluateConfig
from plm_core.corpus.document import Document, read_documents
from plm_core.corpus.shingles import batches
from plm_core.evaluation import pair_scoring
from plm_core.evaluation.evidence import LIKELIHOOD, LIKELIHOOD_COLUMNS, TASK_COLUMNS
from plm_core.evaluation.likelihood import in_evidence, named
from plm_core.evaluation.ngram import ROOM, NGrams, ppmd_bits_after
from plm_core.evaluation.sealed_csv import write_sealed
from plm_core.objectives import OBJECTIVES
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder, sha256_text
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import EOS
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage

ORDER = 5
MOST = 32 << 20
"""Bytes of training text that are learned from, in whole documents. They take about a gigabyte of memory."""
LEAST = 1 << 20
"""Bytes of held-out text that the compressor reads even after a single document that fills its memory."""
TEST, TRAIN = paths.CORPUS / "test.parquet", paths.CORPUS / "train.parquet"


def text_baseline(name: str) -> None:
    """Learn from the training text, measure on the test split and the minimal pairs; write evidence and metrics."""
    config = stage_parameters.section("evaluate", EvaluateConfig)
    # A file is missing if its stage failed.
    pairs = [
        file for key in stage_parameters.section_names("pairs") if (file := paths.PAIRS / f"{key}.jsonl").is_file()
    ]
    folder = paths.TOKENIZERS / name
    evidence = paths.EVIDENCE / f"{paths.NGRAM}{name}"
    inputs = [folder, paths.TOKENS / name, TRAIN, TEST, *pairs]
    with stage(f"text-baseline-{name}", ["evaluate", "pairs"], inputs) as run:
        tokenizer = open_tokenizer(folder)
        store = TokenStore(paths.TOKENS / name / "train")
        store.require(tokenizer)
        read = max(1, sum(1 for total in accumulate(store.bytes.tolist()) if total <= MOST))
        learned = np.concatenate(([EOS], store.tokens(0, int(store.offsets[read]))))
        documents = list(read_documents(TEST))
        ids = tokenizer.encode_batch([document.text for document in documents])
        sizes = [len(document.text.encode()) for document in documents]
        # The likelihood of models that predict each token from those before it.
        likelihood = next(o.likelihood.name for o in OBJECTIVES.values() if o.perplexity)
        quantity, recorded = named(likelihood, tokenizer), in_evidence(likelihood, tokenizer)
        figures = {}
        for order, way in ((1, "unigram"), (ORDER, "ngram")):
            model = NGrams(learned, order, store.index.vocab_size)
            nats = list(_nats(model, ids))
            figures[f"{way}_{quantity}"] = sum(nats) / math.log(2) / sum(sizes)
        rows = zip(documents, sizes, ids, nats, strict=True)
        lines = ((d.id, sha256_text(d.text), b, len(i) + 1, repr(n), recorded, config.measured) for d, b, i, n in rows)
        with atomic_folder(evidence, checksums=False) as new:
            write_sealed(new / LIKELIHOOD, LIKELIHOOD_COLUMNS, lines)
            for file in pairs:  # whose texts are passages: no EOS counts
                some = load_pairs(file)
                both = tokenizer.encode_batch([text for pair in some for text in (pair.good, pair.bad)])
                nats_of_texts = _nats(model, both, last=-1)
                judged = pair_scoring.pair_rows(some, zip(nats_of_texts, nats_of_texts, strict=True), config)
                write_sealed(new / pair_scoring.file_of(file.stem), TASK_COLUMNS, judged)
        figures["ppmd_bits_per_byte"], share = _compressed(_joined(islice(read_documents(TRAIN), read)), documents)
        run.metrics |= figures | {"train_documents": read, "bytes": sum(sizes)}
        run.metrics |= {"ppmd_share": share} if share < 1 else {}
        run.outputs.append(evidence)
        summary = ", ".join(f"{way.partition('_')[0]} {value:.4f}" for way, value in figures.items())
        print(f"{name}: {summary} bits per byte")


def _nats(model: NGrams, texts: Sequence[np.ndarray], last: int | None = None) -> Iterator[float]:
    """The nats of each text: of its tokens and the EOS after them, up to the place ``last``.

    Few texts at a time, since a token takes a hundred bytes.
    """
    for group in batches(texts, lambda ids: ids):
        nats = model.nats(np.concatenate([[EOS], *(np.append(ids, EOS) for ids in group)]))
        ends = np.cumsum([len(ids) + 1 for ids in group])
        yield from (float(part[:last].sum()) for part in np.split(nats, ends[:-1]))


def _compressed(before: bytes, documents: Sequence[Document]) -> tuple[float, float]:
    """The bits per byte of PPMd after the text ``before``, and the share of the documents that it was given: as many as
    fit, evenly spread."""
    whole = _joined(documents)
    room = max(LEAST, ROOM - len(before))
    text = _joined(documents[:: -(-len(whole) // room)])[:room]
    return ppmd_bits_after(before, text) / len(text), len(text) / len(whole)


def _joined(documents: Iterable[Document]) -> bytes:
    return "\n\n".join(document.text for document in documents).encode()


if __name__ == "__main__":
    main(text_baseline)
