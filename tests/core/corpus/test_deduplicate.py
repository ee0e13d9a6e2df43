"""Of duplicate documents and paragraphs the first by id is kept, and everything is accounted for."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plm_core.corpus import document as module
from plm_core.corpus.deduplication import DeduplicateConfig, deduplicate, without_repeats
from plm_core.corpus.document import Document, parts_of, write_documents
from plm_core.corpus.normalize import BETWEEN, paragraphs_of
from plm_core.corpus.part_pool import Pool

WORDS = [f"w{i}" for i in range(500)]


def paragraph(seed, length=60, changed=0):
    draw = random.Random(seed)
    tokens = [draw.choice(WORDS) for _ in range(length)]
    for place in range(changed):
        tokens[place * 20] = f"new{place}"
    return " ".join(tokens)


def document(name, *paragraphs):
    return Document(name, BETWEEN.join(paragraphs), "s", {"year": 1})


def run(corpus, tmp_path_factory, **config):
    """What is left of each document; parts hold two of them."""
    folder = tmp_path_factory.mktemp("dedup")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", 2)
        patch.setattr(module, "PART_BYTES", 1)
        write_documents(folder / "x.parquet", sorted(corpus, key=lambda d: d.id))
        parts = parts_of([folder / "x.parquet"])
    deduplicated = deduplicate(parts, DeduplicateConfig(**config), Pool(folder / "pool", 1))
    return [document for part in deduplicated for document in without_repeats(part)]


def test_deduplicate_removes_documents_and_names_the_original(tmp_path_factory):
    a, b = [paragraph(1), paragraph(2)], [paragraph(3), paragraph(4)]
    documents = [
        document("a", *a),
        document("b", a[0].upper(), a[1]),
        document("c", paragraph(1, changed=1), a[1]),
        document("d", *b),
    ]
    results = run(documents, tmp_path_factory)
    assert [d.document for d in results] == [documents[0], *(document(n) for n in "bc"), documents[3]]
    assert [d.group for d in results] == ["a", "a", "a", "d"]
    (exact,), (near,) = results[1].removals, results[2].removals
    assert (exact.document, exact.paragraph, exact.rule, exact.value) == ("b", None, "exact_duplicate", "a")
    assert exact.text == documents[1].text
    assert (near.rule, near.value) == ("near_duplicate", "a (similarity 0.98)")


def test_deduplicate_keeps_the_first_paragraph(tmp_path_factory):
    once, often = paragraph(1), paragraph(2)
    documents = [
        document("b", often, once, paragraph(2, changed=1)),
        document("a", paragraph(3), often),
        document("c", often),
    ]
    results = run(documents, tmp_path_factory, documents="off")
    assert [d.document.text for d in results] == [BETWEEN.join([paragraph(3), often]), once, ""]
    removed = [(r.document, r.paragraph, r.rule, r.value) for d in results for r in d.removals]
    assert removed == [
        ("b", 0, "exact_duplicate", "a#1"),
        ("b", 2, "near_duplicate", "a#1 (similarity 0.96)"),
        ("c", 0, "exact_duplicate", "a#1"),
    ]


def test_deduplicate_ignores_paragraphs_of_removed_documents(tmp_path_factory):
    """The repeated paragraph of a document that goes is not "first": the copy in one that stays is kept."""
    own, shared = [paragraph(i) for i in range(1, 9)], paragraph(9, 30)
    documents = [document("a", *own), document("b", *own, shared), document("c", paragraph(20), shared)]
    results = run(documents, tmp_path_factory)
    assert results[1].removals[0].rule == "near_duplicate"
    assert results[2].document == documents[2]


PARAGRAPHS = st.sampled_from([paragraph(i, length) for i in range(4) for length in (3, 60)] + [paragraph(1, changed=1)])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(PARAGRAPHS, min_size=1, max_size=4), max_size=6), st.randoms(use_true_random=False))
def test_every_paragraph_is_kept_or_removed_whatever_the_order(tmp_path_factory, texts, shuffle):
    documents = [document(f"d{i}", *paragraphs) for i, paragraphs in enumerate(texts)]
    results = run(documents, tmp_path_factory)
    for before, after in zip(documents, results, strict=True):
        if after.removals and after.removals[0].paragraph is None:
            assert (after.document.text, after.removals[0].text) == ("", before.text)
            continue
        kept = iter(paragraphs_of(after.document.text))
        removed = {r.paragraph: r.text for r in after.removals}
        pieces = [removed[i] if i in removed else next(kept) for i in range(len(paragraphs_of(before.text)))]
        assert pieces == paragraphs_of(before.text)
        assert next(kept, None) is None
    kept_texts = [text for d in results for text in paragraphs_of(d.document.text)]
    assert len(set(kept_texts)) == len(kept_texts)
    mixed = list(documents)
    shuffle.shuffle(mixed)
    assert run(mixed, tmp_path_factory) == results


def test_deduplicate_refuses_same_side_with_paragraphs():
    with pytest.raises(ValueError, match="documents: same_side keeps duplicates"):
        DeduplicateConfig("same_side")
