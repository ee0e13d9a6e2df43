"""A source that is read in parts is joined in the order of its ids; of documents with one id the first is kept."""

import json
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_core.corpus import document, ingest
from plm_core.corpus.document import Document, parts_of, read_documents
from plm_core.corpus.ingest import COUNTS, DOCUMENTS, join_part, read_part, refused


class Listed:
    """A part of a source that has these documents."""

    def __init__(self, documents):
        self.documents = documents

    def read(self):
        return iter(self.documents)


def ingested(folder, sources):
    """What comes of the parts of a source: the documents, the records that are refused, and the counts."""
    read = [folder / f"read-{number}" for number in range(len(sources))]
    for documents, result in zip(sources, read, strict=True):
        result.mkdir()
        read_part(("own", Listed(documents)), result)
    found = parts_of([result / DOCUMENTS for result in read], unique=False)
    joined = [folder / f"join-{number}" for number in range(len(found))]
    for part, result in zip(found, joined, strict=True):
        result.mkdir()
        join_part(("own", part), result)
    kept = [document for result in joined for document in read_documents(result / DOCUMENTS)]
    counts = [json.loads((result / COUNTS).read_text()) for result in joined]
    return kept, list(refused(joined)), sum(map(Counter, counts), Counter())


FILES = st.lists(st.lists(st.sampled_from("abcd"), max_size=12), min_size=1, max_size=4)


@settings(deadline=None)
@given(FILES, st.integers(1, 2000), st.integers(1, 6000))
def test_of_documents_with_one_id_the_first_is_kept_and_the_others_are_quarantined(tmp_path_factory, files, size, held):
    sources = [
        [Document(name, f"{number}-{i}", f"{number}:{i}") for i, name in enumerate(ids)]
        for number, ids in enumerate(files)
    ]
    every = list(chain.from_iterable(sources))
    first = {document.id: document for document in reversed(every)}
    others = sorted((d.source, "duplicate_id", d.id) for d in every if d not in first.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "PART_BYTES", size)
        patch.setattr(document, "ROWS_AT_ONCE", 2)
        # Some are sorted in memory, others in files, of which a few at a time are merged.
        patch.setattr(ingest, "CHARACTERS_AT_ONCE", held)
        patch.setattr(ingest, "MOST_RUNS", 2)
        kept, away, counts = ingested(tmp_path_factory.mktemp("ingest"), sources)
    texts = [first[name].text for name in sorted(first)]
    assert [(each.id, each.source) for each in kept] == [(f"own/{name}", "own") for name in sorted(first)]
    assert [each.text for each in kept] == texts
    assert sorted((each.place, each.reason, each.detail[len("the id '")]) for each in away) == others
    assert counts == Counter(documents=len(texts), bytes=sum(map(len, texts)))


def test_ids_that_are_longer_than_what_is_held_in_memory_are_told_apart(tmp_path):
    numbers = (*range(50), 7, 49)
    text = [Document("k" * 1_500_000 + f"{number:02}", str(number), str(place)) for place, number in enumerate(numbers)]
    kept, away, _ = ingested(tmp_path, [text])
    assert [each.text for each in kept] == [str(number) for number in range(50)]
    assert [each.place for each in away] == ["50", "51"]
