"""Questions about texts in the JSON layout of SQuAD 1.1 and 2.0: ``data``, ``paragraphs``, ``qas``, ``answers``. Used
by the other sources.

Sources: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text"; Rajpurkar et al. 2018,
"Know What You Don't Know: Unanswerable Questions for SQuAD".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plm_core.benchmarks.examples import Answer, Example
from plm_core.benchmarks.task import GlueTask
from plm_core.config import UserError
from plm_core.corpus.records import SURROGATE


def read(task: GlueTask, file: Path, places: dict[str, str]) -> list[Example]:
    """The questions of a file in their order; ``places`` collects the place of each id, over all files of a task.

    Raises:
        UserError: the file is not JSON of this layout, an answer is not at its ``answer_start``, a question has no
            answer although the task requires one, or an id occurs twice.
    """
    try:
        content = json.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: {error}; expected JSON in SQuAD's layout") from error
    examples = []
    for place, group, context, question in _questions(file, content):
        name = _text(question, "id", place)
        asked = _text(question, "question", place).strip()
        answers = tuple(_answers(question, context, place))
        if not answers and not task.unanswerable:
            raise UserError(
                f"{place}: no answer to {name!r}; expected one, or in the description of a task of your own "
                "`unanswerable: true`"
            )
        if before := places.get(name):
            raise UserError(f"{place}: the id {name!r} was used before, at {before}; expected unique ids")
        places[name] = place
        examples.append(Example(name, asked, context, 0, answers=answers, group=group))
    return examples


def _questions(file: Path, content: object) -> Iterator[tuple[str, str, str, Any]]:
    """Yield the place, group, text and fields of each question.

    The group is the document, by its place in the file; if the file has only one, it is the text.
    """
    documents = list(_list(content, "data", f"{file}"))
    for above, document in documents:
        for place, paragraph in _list(document, "paragraphs", above):
            context = _text(paragraph, "context", place)
            for inner, question in _list(paragraph, "qas", place):
                group = (above if len(documents) > 1 else place).removeprefix(f"{file.parent}/")
                yield inner, group, context, question


def _answers(question: Any, context: str, place: str) -> Iterator[Answer]:
    if question.get("is_impossible") is True:
        return
    for inner, answer in _list(question, "answers", place):
        text = _text(answer, "text", inner)
        start = answer.get("answer_start")
        if type(start) is not int or start < 0:
            raise UserError(f"{inner}.answer_start: found {start!r}; expected a character of the context, from 0")
        if (found := context[start : start + len(text)]) != text:
            raise UserError(f"{inner}: at answer_start {start}: found {found!r}; expected the answer {text!r}")
        yield Answer(text, start)


def _list(content: Any, name: str, place: str) -> Iterator[tuple[str, Any]]:
    """The items of a list in an object, each with its place."""
    items = content.get(name) if isinstance(content, dict) else None
    if not isinstance(items, list):
        raise UserError(f"{place}: no list {name!r}; expected the layout of SQuAD: data, paragraphs, qas, answers")
    yield from ((f"{place}{':' if name == 'data' else '.'}{name}[{i}]", item) for i, item in enumerate(items))


def _text(content: Any, name: str, place: str) -> str:
    text = content.get(name) if isinstance(content, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{place}.{name}: found {text!r}; expected a text")
    if "\0" in text or SURROGATE.search(text):
        raise UserError(f"{place}.{name}: a NUL or a lone surrogate; expected text")
    return text
