"""A source that is read in parts is joined in the order of its ids; of documents with one id the first is kept."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_core.corpus import parts, tables
from plm_core.corpus.document import Document, read_documents
from plm_core.corpus.ingest import COUNTS, DOCUMENTS, join_part, read_part, refused
from plm_core.corpus.parts import parts_of


class Listed:
    """A part of a source that has these documents."""

    def __init__(self, documents):
        self.documents = documents

    def read(self):
        return iter(self.documents)


FILES = st.lists(st.lists(st.sampled_from("abcd"), max_size=12), min_size=1, max_size=4)


@given(FILES, st.integers(1, 2000))
def test_of_documents_with_one_id_the_first_is_kept_and_the_others_are_quarantined(tmp_path_factory, files, size):
    folder = tmp_path_factory.mktemp("ingest")
    read = [folder / f"read-{number}" for number in range(len(files))]
    every = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_BYTES", size)
        patch.setattr(tables, "ROWS_AT_ONCE", 2)
        for number, (ids, result) in enumerate(zip(files, read, strict=True)):
            documents = [Document(name, f"{number}-{i}", f"{number}:{i}") for i, name in enumerate(ids)]
            every += documents
            result.mkdir()
            read_part(("own", Listed(documents)), result)
        found = parts_of([result / DOCUMENTS for result in read], unique=False)
        joined = [folder / f"join-{number}" for number in range(len(found))]
        for part, result in zip(found, joined, strict=True):
            result.mkdir()
            join_part(("own", part), result)
    first = {document.id: document for document in reversed(every)}
    kept = [document for result in joined for document in read_documents(result / DOCUMENTS)]
    assert [(each.id, each.text, each.source) for each in kept] == [
        (f"own/{name}", first[name].text, "own") for name in sorted(first)
    ]
    others = [each for each in refused(joined) if each.reason == "duplicate_id"]
    assert sorted(each.place for each in others) == sorted(d.source for d in every if d not in first.values())
    assert all(
        each.detail == f"the id {name!r} stands before; expected unique ids"
        for each, name in zip(others, sorted(d.id for d in every if d not in first.values()), strict=True)
    )
    counts = [json.loads((result / COUNTS).read_text()) for result in joined]
    assert sum(each["documents"] for each in counts) == len(first)
    assert sum(each["bytes"] for each in counts) == sum(len(d.text.encode()) for d in first.values())
