"""GLUE-like tasks, the kinds of them, and the folder of a task: ``task.json`` and a file of examples per split.

Everything that depends on the kind of a task is here, or in the two places that its kind names: where it is learned by
a model, and by a linear one.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from plm_core.benchmarks.example_readers import (
    GZIPPED,
    OUTSIDE,
    TABLES,
    Answer,
    ConllReader,
    Example,
    FileLayout,
    Reader,
    ReferenceReader,
    SquadReader,
    TableReader,
    class_of,
    number_of,
    read_lines,
    write_lines,
)
from plm_core.config import UserError, from_dict, section
from plm_core.shared.files import RESTORE, verify_checksums

FILE = "task.json"


@section
class GlueTask:
    """A GLUE-like task."""

    name: str
    """The name in `examples` and `finetune.tasks`."""
    kind: str
    """A name in ``KINDS``."""
    question: str
    """The question that its labels answer, for the report."""
    labels: tuple[str, ...]
    """The classes, in the order of their ids; for a multiple choice, the names of the positions; for tagged words, the
    tags in IOB2: ``O``, and ``B-<type>`` and ``I-<type>`` of every type; otherwise none."""
    metrics: tuple[str, ...]
    """What is measured: metrics of its kind, and ``f1:<class>``, the F1 of that class."""
    score: str
    """The main score of the task: a metric, or the mean of several, written ``accuracy+f1:duplicate``. A class with a
    ``+`` in its name cannot be used there."""
    symmetric: bool = False
    """Whether the order of the two texts does not matter."""
    span: tuple[float, ...] | None = None
    """The least and the largest number of a regression; None: any."""
    unanswerable: bool = False
    """Whether there may be no answer in the text (Rajpurkar et al. 2018)."""
    follows: bool = False
    """Whether the second text is asked about as the continuation of the first, whose end is kept if it is cut."""

    def __post_init__(self) -> None:
        require_kind(self.kind)
        kind = KINDS[self.kind]
        kind.require_labels(self)
        allowed = [*kind.metrics, *(f"f1:{label}" for label in self.labels if kind.of_classes)]
        for place, names in (("score", tuple(self.score.split("+"))), ("metrics", self.metrics)):
            for name in names:
                if name not in allowed:
                    raise ValueError(f"{place}: found {name!r}; expected names among {', '.join(allowed)}")


@section
class ExamplesConfig:
    """A section of ``examples`` in the parameters. A task of the table states only its ``input``."""

    input: str
    """The input, tracked by DVC. For a published task: its folder of the official download; for GLUE also the manifest
    (JSON) that pins ``nyu-mll/glue`` on the hub. For a task from the corpus: the splits. For a task of your own: a
    folder with ``train``, ``test`` and optionally ``valid``, each as .tsv (nothing is quoted), .csv or .jsonl; for
    ``token_classification`` as .conll or .txt in columns, tags in IOB2; for ``question_answering`` as .json in SQuAD's
    layout; for ``translation`` and ``summarization`` also as two files of lines that belong together, such as
    ``train.en`` and ``train.de``, or as the manifest (JSON) of translations that are packages."""
    kind: str | None = None
    """The kind of your own task: ``classification``, ``regression``, ``multiple_choice`` (the right one of several
    texts), ``token_classification`` (tags of words), ``question_answering`` (answers that occur in a text),
    ``translation``, ``summarization`` (the answer is a text) or ``search`` (the passage that is relevant to a query,
    among all of its split)."""
    a: str | None = None
    """The column of the text, or of the first of two; of two files of lines, how the name of the first ends: ``en``."""
    b: str | None = None
    """The column of the second text; for ``multiple_choice``, of what precedes each of the texts, if anything; for
    ``search``, of the passage that is relevant to the query ``a``."""
    choices: list[str] = field(default_factory=list)
    """The columns of the texts to choose from; or the one column of a .jsonl that has them as a list."""
    label: str | None = None
    """The column of the label; for ``translation`` and ``summarization``, of the reference, or in a .jsonl of a list of
    them; of two files of lines, how the name of the second ends: ``de``."""
    labels: list[str] = field(default_factory=list)
    """The names of the classes; for a multiple choice, how the label denotes each choice ([]: 0, 1, ...); for tagged
    words, the types of entities, such as PER."""
    score: str | None = None
    """The main score of the task, such as ``accuracy``, ``f1:billing``, ``pearson+spearman`` (their mean),
    ``entity_f1``, ``exact_match+answer_f1``, ``bleu``, ``rouge1+rouge2+rougeL``, ``ndcg_at_10``."""
    metrics: list[str] = field(default_factory=list)
    """What is measured in addition to the score; []: all metrics of this kind."""
    question: str | None = None
    """The question that the labels answer, for the report."""
    symmetric: bool = False
    """Whether the order of the two texts does not matter."""
    id: str | None = None
    """The column of a unique id; null: the number of the row."""
    group: str | None = None
    """The column of what several examples have in common, such as their document or customer: they are held out
    together, and are one independent observation when models are compared. null: examples with a text in common count
    as one."""
    unanswerable: bool = False
    """Whether a question may have no answer in its text."""

    def __post_init__(self) -> None:
        if self.kind is not None:
            require_kind(self.kind)


class Kind:
    """A kind of task. This class is also the kind whose examples have a label, the id of a class."""

    metrics: tuple[str, ...] = ("accuracy", "macro_f1", "matthews")
    """By the names of ``plm_core.evaluation.evaluate_modules``."""
    stated: tuple[str, ...] = ("a", "label")
    """The fields of ``ExamplesConfig`` that a team's own task must state, in addition to kind and score."""
    optional: tuple[str, ...] = ("b", "labels", "symmetric", "id", "group")
    """The fields that it may state."""
    formats: tuple[str, ...] = TABLES
    """The file extensions of a team's own task."""
    of_lines = False
    """Whether its files may be two with lines that belong together, whose names end with the names of the columns."""
    has_labels = True
    """Whether a task of this kind has labels."""
    of_classes = True
    """Whether a class has an F1 of its own, and is learned from its own examples."""
    has_choices = False
    """Whether each example has its own texts to choose from."""
    has_options = True
    """Whether an answer is the id of a label, so that a language model can be asked which one is likeliest."""
    writes_texts = False
    """Whether an answer is a text that is written token by token."""
    has_checks = True
    """Whether there are behavioural checks."""
    request: Mapping[str, str] = MappingProxyType({"text": "a", "text_pair": "b"})
    """The columns of a request to a served model, and the field of ``Example`` that each one is."""
    answer_type: Literal["text", "texts", "number", "numbers"] = "text"
    """What a served model answers with."""
    head = "plm_core.finetuning.task_heads:CLASSES"
    """Where a model learns it: a ``plm_core.finetuning.task_heads.TaskHead``."""
    linear = "plm_core.finetuning.linear_baselines:classes"
    """Where a linear model learns it: a function as in ``plm_core.finetuning.linear_baselines``."""

    def require_labels(self, task: GlueTask) -> None:
        """Raise ValueError for labels that a task of this kind cannot have."""
        if not self.has_labels:
            if task.labels:
                raise ValueError(f"labels: found {', '.join(task.labels)}; expected none for a {task.kind}")
            return
        if len(task.labels) < 2:
            raise ValueError(f"labels: found {list(task.labels)}; expected the names of at least two classes")
        for label in task.labels:
            if not label or label != label.strip() or not label.isprintable():
                raise ValueError(f"labels: found {label!r}; expected printable names without whitespace around them")
            if task.labels.count(label) > 1:
                raise ValueError(f"labels: {label!r} appears twice; expected names that differ")

    def describe(self, config: ExamplesConfig, where: str) -> tuple[str, list[str]]:
        """The question that a team's own task asks, and its labels; UserError, which begins with ``where``, if they are
        missing or too many."""
        return f"{config.label}: {', '.join(config.labels) or 'which number'}?", config.labels

    def reader(self, task: GlueTask, layout: FileLayout) -> Reader:
        """Reads the files of a task."""
        return TableReader(layout, partial(class_of, codes=layout.codes, labels=task.labels), len(task.labels))

    def answer_fields(self, task: GlueTask, example: Example) -> dict[str, Any]:
        """The right answer of an example as JSON: classes by name, numbers with all their digits."""
        return {"label": task.labels[int(example.label)]}

    def read_answer(self, task: GlueTask, fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """The reverse: fields of an ``Example``; KeyError, TypeError or ValueError if they are damaged."""
        return {"label": ids[fields["label"]]}

    def gold(self, task: GlueTask, example: Example) -> Any:
        """The right answer in the form of a prediction."""
        return example.label

    def written(self, task: GlueTask, answer: Any) -> str:
        """A prediction or a right answer in the form of evidence (``plm_core.evaluation.evidence``)."""
        return task.labels[int(answer)]

    def unanswered(self, task: GlueTask, request: Mapping[str, Any]) -> Example:
        """The example that a row of a request asks about; ValueError if it cannot be one."""
        given = {field: request[column] for column, field in self.request.items() if column in request}
        return Example(**{"id": "", "b": None, "label": 0} | given)

    def served(self, task: GlueTask, answer: Any) -> Any:
        """A prediction in the form that a served model answers with; for a search, the vector of a text."""
        return self.written(task, answer) if self.answer_type == "text" else answer

    def to_train_on(self, task: GlueTask) -> tuple[str, ...]:
        """The labels that must occur in the training set."""
        return task.labels if self.of_classes else ()

    def counts(self, task: GlueTask, examples: Sequence[Example]) -> Mapping[str, float]:
        """What a split is made of, such as the number of examples of each class."""
        classes = Counter(e.label for e in examples)
        return {f"label_{name}": classes[i] for i, name in enumerate(task.labels)}


class Regression(Kind):
    """One or two texts have a number."""

    metrics = ("pearson", "spearman")
    has_labels = of_classes = has_options = False
    answer_type = "number"
    head = "plm_core.finetuning.task_heads:NUMBERS"
    linear = "plm_core.finetuning.linear_baselines:ridge_regression"

    def reader(self, task: GlueTask, layout: FileLayout) -> Reader:
        return TableReader(layout, partial(number_of, span=task.span))

    def answer_fields(self, task: GlueTask, example: Example) -> dict[str, Any]:
        return {"label": float(example.label)}

    def read_answer(self, task: GlueTask, fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        return {"label": fields["label"]}

    def written(self, task: GlueTask, answer: Any) -> str:
        return repr(float(answer))

    def counts(self, task: GlueTask, examples: Sequence[Example]) -> Mapping[str, float]:
        return {"mean_label": sum(e.label for e in examples) / len(examples)} if examples else {}


class MultipleChoice(Kind):
    """One of several texts fits; its labels are the names of their positions."""

    metrics = ("accuracy",)
    stated = ("a", "choices", "label")
    optional = ("b", "labels", "id", "group")
    of_classes = has_checks = False
    has_choices = True
    request = MappingProxyType({"text": "a", "text_pair": "b", "choices": "choices"})
    head = "plm_core.finetuning.task_heads:CHOICES"
    linear = "plm_core.finetuning.linear_baselines:choices"

    def describe(self, config: ExamplesConfig, where: str) -> tuple[str, list[str]]:
        many = len(config.choices)
        if many == 1 and not config.labels:
            expected = f"how the label writes each place of {config.choices[0]}"
            raise UserError(f"{where}.labels: missing; expected {expected}")
        if many > 1 and config.labels and len(config.labels) != many:
            raise UserError(f"{where}.labels: {len(config.labels)} for {many} choices; expected one each, or none")
        labels = config.labels or [str(place) for place in range(many)]
        return f"{config.label}: which of {', '.join(config.choices)}?", labels

    def answer_fields(self, task: GlueTask, example: Example) -> dict[str, Any]:
        return {"choices": example.choices} | super().answer_fields(task, example)

    def read_answer(self, task: GlueTask, fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        return super().read_answer(task, fields, ids) | {"choices": tuple(map(str, fields["choices"]))}

    def unanswered(self, task: GlueTask, request: Mapping[str, Any]) -> Example:
        if (many := len(request["choices"])) != len(task.labels):
            raise ValueError(f"choices: found {many}; expected {len(task.labels)}")
        return super().unanswered(task, dict(request) | {"choices": tuple(request["choices"])})


class TokenClassification(Kind):
    """Each word has a tag, in IOB2."""

    metrics = ("entity_f1",)
    stated = ("labels",)
    optional = ()
    formats = (".conll", ".txt")
    of_classes = has_options = has_checks = False
    request = MappingProxyType({"text": "a"})
    answer_type = "texts"
    head = "plm_core.finetuning.task_heads:TAGS"
    linear = "plm_core.finetuning.linear_baselines:tags"

    def require_labels(self, task: GlueTask) -> None:
        labels = task.labels
        if len(labels) < 3 or labels != iob2(types_of(labels)):
            raise ValueError(f"labels: found {list(labels)}; expected O, B-<type>, I-<type>, B-<type>, ...")
        if any(len(label.split()) != 1 for label in labels):
            raise ValueError(f"labels: found {list(labels)}; expected types without whitespace")

    def describe(self, config: ExamplesConfig, where: str) -> tuple[str, list[str]]:
        return f"Which words name {', '.join(config.labels)}?", [*iob2(config.labels)]

    def reader(self, task: GlueTask, layout: FileLayout) -> Reader:
        return ConllReader(task.labels, layout.iob1)

    def answer_fields(self, task: GlueTask, example: Example) -> dict[str, Any]:
        return {"tags": self.gold(task, example)}

    def read_answer(self, task: GlueTask, fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        tags = tuple(ids[tag] for tag in fields["tags"])
        if len(tags) != (words := len(fields["a"].split(" "))):
            raise ValueError(f"{len(tags)} tags for {words} words")
        return {"tags": tags}

    def gold(self, task: GlueTask, example: Example) -> Any:
        return [task.labels[tag] for tag in example.tags]

    def written(self, task: GlueTask, answer: Any) -> str:
        return " ".join(answer)

    def unanswered(self, task: GlueTask, request: Mapping[str, Any]) -> Example:
        """Words are what whitespace separates."""
        if not (words := request["text"].split()):
            raise ValueError("text: found no words; expected some")
        return replace(super().unanswered(task, request), a=" ".join(words), tags=(0,) * len(words))

    def to_train_on(self, task: GlueTask) -> tuple[str, ...]:
        return tuple(tag for tag in task.labels if tag.startswith("B-"))

    def counts(self, task: GlueTask, examples: Sequence[Example]) -> Mapping[str, float]:
        tags = Counter(tag for e in examples for tag in e.tags)
        entities = {f"entities_{of}": tags[task.labels.index(f"B-{of}")] for of in types_of(task.labels)}
        return {"words": tags.total()} | entities


class QuestionAnswering(Kind):
    """The answer to a question occurs in a text."""

    metrics = ("exact_match", "answer_f1")
    stated = ()
    optional = ("labels", "unanswerable")
    formats = (".json",)
    has_labels = of_classes = has_options = has_checks = False
    request = MappingProxyType({"question": "a", "context": "b"})
    head = "plm_core.finetuning.task_heads:SPANS"
    linear = "plm_core.finetuning.linear_baselines:spans"

    def describe(self, config: ExamplesConfig, where: str) -> tuple[str, list[str]]:
        return f"Where in the text is the answer{', if it is there' if config.unanswerable else ''}?", config.labels

    def reader(self, task: GlueTask, layout: FileLayout) -> Reader:
        return SquadReader(task.unanswerable)

    def answer_fields(self, task: GlueTask, example: Example) -> dict[str, Any]:
        return {"answers": example.answers}

    def read_answer(self, task: GlueTask, fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        return {"answers": tuple(Answer(str(text), int(start)) for text, start in fields["answers"])}

    def gold(self, task: GlueTask, example: Example) -> Any:
        return [answer.text for answer in example.answers]

    def written(self, task: GlueTask, answer: Any) -> str:
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

    def counts(self, task: GlueTask, examples: Sequence[Example]) -> Mapping[str, float]:
        return {"unanswerable": sum(not e.answers for e in examples)}


class Texts(Kind):
    """The answer is a text, which is compared with one or more references."""

    optional = ("id", "group")
    formats = (*TABLES, GZIPPED)
    of_lines = True
    has_labels = of_classes = has_options = has_checks = False
    writes_texts = True
    request = MappingProxyType({"text": "a"})
    head = "plm_core.finetuning.task_heads:TEXTS"

    def __init__(self, metrics: tuple[str, ...], question: str, linear: str) -> None:
        self.metrics = metrics
        self.question = question
        self.linear = linear

    def describe(self, config: ExamplesConfig, where: str) -> tuple[str, list[str]]:
        return self.question, config.labels

    def reader(self, task: GlueTask, layout: FileLayout) -> Reader:
        return ReferenceReader(layout)

    def answer_fields(self, task: GlueTask, example: Example) -> dict[str, Any]:
        return {"references": self.gold(task, example)}

    def read_answer(self, task: GlueTask, fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        if not isinstance(texts := fields["references"], list) or not texts:
            raise ValueError("no list of references")
        return {"answers": tuple(Answer(str(text), 0) for text in texts)}

    def gold(self, task: GlueTask, example: Example) -> Any:
        return [reference.text for reference in example.answers]

    def written(self, task: GlueTask, answer: Any) -> str:
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

    def unanswered(self, task: GlueTask, request: Mapping[str, Any]) -> Example:
        return replace(super().unanswered(task, request), answers=(Answer("", 0),))

    def counts(self, task: GlueTask, examples: Sequence[Example]) -> Mapping[str, float]:
        references = [reference.text for e in examples for reference in e.answers]
        words, reference_words = (sum(len(t.split()) for t in texts) for texts in ([e.a for e in examples], references))
        return {"words": words, "references": len(references), "reference_words": reference_words}


class Search(Kind):
    """The first text is a query, the second a passage that is relevant to it, to be found among those of all examples.

    An answer is the rank of the passage. A query with several relevant passages has an example for each.
    """

    metrics = ("ndcg_at_10", "mrr_at_10", "recall_at_10")
    stated = ("a", "b")
    optional = ("id", "group")
    has_labels = of_classes = has_options = has_checks = False
    request = MappingProxyType({"text": "a"})
    answer_type = "numbers"
    head = "plm_core.finetuning.task_heads:SEARCH"
    linear = "plm_core.finetuning.linear_baselines:search"

    def describe(self, config: ExamplesConfig, where: str) -> tuple[str, list[str]]:
        return "Which passage is relevant to the query?", config.labels

    def reader(self, task: GlueTask, layout: FileLayout) -> Reader:
        assert layout.columns is not None
        columns = replace(layout.columns, label=str(layout.columns.b))  # there is nothing else to be read
        return TableReader(layout._replace(columns=columns), lambda *_: 0)

    def answer_fields(self, task: GlueTask, example: Example) -> dict[str, Any]:
        return {}

    def read_answer(self, task: GlueTask, fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        return {}

    def gold(self, task: GlueTask, example: Example) -> Any:
        return 1

    def written(self, task: GlueTask, answer: Any) -> str:
        return str(answer)

    def counts(self, task: GlueTask, examples: Sequence[Example]) -> Mapping[str, float]:
        return {"passages": len({e.b for e in examples})}


KINDS: dict[str, Kind] = {
    "classification": Kind(),
    "regression": Regression(),
    "multiple_choice": MultipleChoice(),
    "token_classification": TokenClassification(),
    "question_answering": QuestionAnswering(),
    "translation": Texts(
        ("bleu", "chrf"),
        question="How is the text translated?",
        linear="plm_core.finetuning.text_baselines:translations",
    ),
    "summarization": Texts(
        ("rouge1", "rouge2", "rougeL"),
        question="How is the text summarized?",
        linear="plm_core.finetuning.text_baselines:summaries",
    ),
    "search": Search(),
}


def require_kind(name: str) -> None:
    """Raise ValueError for a name that is not in ``KINDS``."""
    if name not in KINDS:
        raise ValueError(f"kind: found the text {name!r}; expected one of {', '.join(KINDS)}")


def iob2(types: Iterable[str]) -> tuple[str, ...]:
    """The tags of entities of these types: ``B-`` begins one, ``I-`` continues it."""
    return (OUTSIDE, *(f"{prefix}-{of}" for of in types for prefix in "BI"))


def types_of(tags: Iterable[str]) -> list[str]:
    """The types of entities that these tags begin."""
    return [tag.removeprefix("B-") for tag in tags if tag.startswith("B-")]


def own_task(name: str, config: ExamplesConfig, unknown: str) -> GlueTask:
    """A team's own task.

    Raises:
        UserError: the description is invalid; ``unknown`` says what is, where a field is missing.
    """
    where = f"examples.{name}"
    name_of_kind = config.kind or "classification"
    kind = KINDS[name_of_kind]
    stated = ("kind", *kind.stated, "score")
    for parameter in stated:
        if not getattr(config, parameter):
            states = f"a task of your own states {', '.join(stated)} ({parameter} is missing)"
            raise UserError(f"{where}: {unknown}; {states}")
    for other in fields(config):
        common = ("input", "metrics", "question", *stated, *kind.optional)
        if other.name not in common and getattr(config, other.name):
            raise UserError(f"{where}.{other.name}: has no meaning for the kind {config.kind}; expected it left out")
    score = str(config.score)
    metrics = config.metrics or [*kind.metrics]
    question, labels = kind.describe(config, where)
    given: dict[str, Any] = {
        "name": name,
        "kind": name_of_kind,
        "question": config.question or question,
        "labels": labels,
        "metrics": [*metrics, *(part for part in score.split("+") if part not in metrics)],
        "score": score,
        "symmetric": config.symmetric,
        "unanswerable": config.unanswerable,
    }
    return from_dict(GlueTask, given, where)


def write_task(folder: Path, task: GlueTask) -> None:
    """Write ``task.json``."""
    (folder / FILE).write_text(json.dumps(asdict(task), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_task(folder: Path) -> GlueTask:
    """The task in a folder of examples.

    Raises:
        UserError: its ``task.json`` is missing or damaged.
    """
    path = folder / FILE
    try:
        return from_dict(GlueTask, json.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; run the stage that writes it (`dvc repro examples`)") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}; {RESTORE}") from error


def verified_task(folder: Path) -> GlueTask:
    """``read_task``; also UserError if another file of the folder is missing or damaged."""
    verify_checksums(folder)
    return read_task(folder)


def write_examples(path: Path, examples: Iterable[Example], task: GlueTask) -> None:
    """Write JSON lines: id, a, b (if any), the right answer in the form of the task's kind, subset and group (if any).

    Raises:
        ValueError: a label is not finite.
    """
    kind = KINDS[task.kind]

    def fields_of(example: Example) -> dict[str, Any]:
        pair = {} if example.b is None else {"b": example.b}
        part = {name: value for name in ("subset", "group") if (value := getattr(example, name))}
        return {"id": example.id, "a": example.a, **pair, **kind.answer_fields(task, example), **part}

    write_lines(path, map(fields_of, examples))


def read_examples(path: Path, task: GlueTask) -> list[Example]:
    """The examples of a file that ``write_examples`` wrote, in order.

    Raises:
        UserError: the file is missing or damaged; the message names the line.
    """
    kind = KINDS[task.kind]
    ids = {name: i for i, name in enumerate(task.labels)}

    def example(fields: Any, number: int) -> Example:
        answer = {"label": 0} | kind.read_answer(task, fields, ids)
        parts = {name: fields.get(name, "") for name in ("subset", "group")}
        texts = [fields["id"], fields["a"], fields.get("b", ""), *parts.values()]
        if not isinstance(answer["label"], int | float) or not all(isinstance(text, str) for text in texts):
            raise TypeError("a field of another type")
        if not math.isfinite(answer["label"]):
            raise ValueError("a label that is not a number")
        return Example(fields["id"], fields["a"], fields.get("b"), **answer, **parts)

    return read_lines(path, "examples", example, f"an example of {task.name}; {RESTORE}")
