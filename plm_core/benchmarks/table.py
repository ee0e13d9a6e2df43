"""The table of GLUE-like tasks: a task is a row. Read by the stage examples.

The first nine rows are GLUE's, followed by those of other benchmarks and those made from the corpus.

Names of classes, their order and the numbers of rows are those of ``nyu-mll/glue`` on the Hugging Face hub; metrics are
those of Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding",
table 1 (except CoLA's accuracy and F1 without a class). A main score of several metrics is their mean, as there. The
numbers of the others are those of Tjong Kim Sang and De Meulder 2003, table 1, minus the lines that begin a document;
Rajpurkar et al. 2016 and 2018; Zellers et al. 2018, "SWAG: A Large-Scale Adversarial Dataset for Grounded Commonsense
Inference", section 3.
"""

from dataclasses import dataclass
from typing import Any

from plm_core.benchmarks.examples import Columns
from plm_core.benchmarks.task import KINDS, GlueTask, iob2


@dataclass(frozen=True)
class Part:
    """One file of a task, or one split on the hub."""

    file: str
    """The official file, without its ``.tsv``; ``train`` and ``valid`` are these splits, all others are for testing."""
    hub: str
    """The split on the hub."""
    rows: int
    """The number of labelled, complete rows, or of sentences or questions."""
    subset: str = ""
    """The ``subset`` of its examples."""
    names: tuple[str, ...] = ()
    """The names that the official file may have, if different."""


@dataclass(frozen=True)
class Published:
    """A task as it is distributed; its train part comes first."""

    folder: str
    """The folder of the official download."""
    columns: Columns | None
    """The columns of the official files; None if they are not tables."""
    hub: Columns | None
    """The columns of the dataset on the hub, whose configuration has the task's name; None: only files are read."""
    parts: tuple[Part, ...]
    header: tuple[str, ...] | None = None
    """The columns of official files that have no header."""
    coded: bool = True
    """Whether the official files write the id of a class, not its name."""
    ragged: bool = False
    """Whether the official files hold rows with too few columns or an empty text, which readers drop."""


@dataclass(frozen=True)
class Row:
    """A row: the task, and where its data is published; None for a task made from the corpus."""

    task: GlueTask
    published: Published | None = None


def _glue(train: int, dev: int) -> tuple[Part, ...]:
    return Part("train", "train", train), Part("dev", "validation", dev)


def _files(**parts: tuple[int, str]) -> tuple[Part, ...]:
    """The parts, each from its number of rows and the names of its file."""
    return tuple(Part(part, "", rows, names=tuple(names.split())) for part, (rows, names) in parts.items())


def _task(
    name: str,
    question: str,
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    kind: str = "classification",
    **more: Any,
) -> GlueTask:
    return GlueTask(name, kind, question, labels, metrics, **{"score": "+".join(metrics)} | more)


def _read(name: str, question: str, **more: Any) -> GlueTask:
    return _task(
        name, question, (), KINDS["question_answering"].metrics, "question_answering", **{"score": "answer_f1"} | more
    )


SENTENCE = Columns("sentence", None, "label")
SENTENCES = Columns("sentence1", "sentence2", "label")
QUESTION = Columns("question", "sentence", "label")
ENTAILMENT = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")
PLACES = ("0", "1", "2", "3")

ROWS = (
    Row(
        _task(
            "cola",
            "Is the sentence acceptable English?",
            ("unacceptable", "acceptable"),
            ("matthews", "accuracy"),
            score="matthews",
        ),
        Published("CoLA", SENTENCE, SENTENCE, _glue(8551, 1043), header=("source", "label", "mark", "sentence")),
    ),
    Row(
        _task("sst2", "Is what the phrase says of a film positive?", ("negative", "positive"), ("accuracy",)),
        Published("SST-2", SENTENCE, SENTENCE, _glue(67349, 872)),
    ),
    Row(
        _task(
            "mrpc",
            "Do the two sentences say the same?",
            ("not_equivalent", "equivalent"),
            ("accuracy", "f1:equivalent"),
            symmetric=True,
        ),
        Published("MRPC", Columns("#1 String", "#2 String", "Quality"), SENTENCES, _glue(3668, 408)),
    ),
    Row(
        _task(
            "qqp",
            "Do the two questions ask the same?",
            ("not_duplicate", "duplicate"),
            ("accuracy", "f1:duplicate"),
            symmetric=True,
        ),
        Published(
            "QQP",
            Columns("question1", "question2", "is_duplicate"),
            Columns("question1", "question2", "label"),
            _glue(363846, 40430),
            ragged=True,
        ),
    ),
    Row(
        _task(
            "stsb",
            "How alike in meaning are the two sentences, from 0 to 5?",
            (),
            KINDS["regression"].metrics,
            "regression",
            symmetric=True,
            span=(0.0, 5.0),
        ),
        Published("STS-B", Columns("sentence1", "sentence2", "score"), SENTENCES, _glue(5749, 1500)),
    ),
    Row(
        _task("mnli", "Does the premise entail the hypothesis, contradict it, or neither?", MNLI, ("accuracy",)),
        Published(
            "MNLI",
            Columns("sentence1", "sentence2", "gold_label"),
            Columns("premise", "hypothesis", "label"),
            (
                Part("train", "train", 392702),
                Part("dev_matched", "validation_matched", 9815, "matched"),
                Part("dev_mismatched", "validation_mismatched", 9832, "mismatched"),
            ),
            coded=False,
        ),
    ),
    Row(
        _task("qnli", "Does the sentence contain the answer to the question?", ENTAILMENT, ("accuracy",)),
        Published("QNLI", QUESTION, QUESTION, _glue(104743, 5463), coded=False),
    ),
    Row(
        _task("rte", "Does the text entail the hypothesis?", ENTAILMENT, ("accuracy",)),
        Published("RTE", SENTENCES, SENTENCES, _glue(2490, 277), coded=False),
    ),
    Row(
        _task(
            "wnli",
            "Does the sentence entail the one in which its pronoun is replaced?",
            ("not_entailment", "entailment"),
            ("accuracy",),
        ),
        Published("WNLI", SENTENCES, SENTENCES, _glue(635, 71)),
    ),
    Row(
        _task(
            "conll2003",
            "Which words name a person, a place, an organisation, or something else?",
            iob2(("PER", "LOC", "ORG", "MISC")),
            KINDS["token_classification"].metrics,
            "token_classification",
        ),
        Published(
            "CoNLL-2003",
            None,
            None,
            _files(
                train=(14041, "eng.train train.txt"),
                valid=(3250, "eng.testa valid.txt"),
                test=(3453, "eng.testb test.txt"),
            ),
        ),
    ),
    Row(
        _read("squad", "Where in the text is the answer?"),
        Published("SQuAD 1.1", None, None, _files(train=(87599, "train-v1.1.json"), dev=(10570, "dev-v1.1.json"))),
    ),
    Row(
        _read("squad2", "Where in the text is the answer, if it is there?", unanswerable=True),
        Published("SQuAD 2.0", None, None, _files(train=(130319, "train-v2.0.json"), dev=(11873, "dev-v2.0.json"))),
    ),
    Row(
        _task("swag", "Which of four continues what is seen?", PLACES, ("accuracy",), "multiple_choice"),
        Published(
            "SWAG",
            Columns("sent1", "sent2", "label", choices=("ending0", "ending1", "ending2", "ending3")),
            None,
            _files(train=(73546, "train.csv"), val=(20006, "val.csv")),
        ),
    ),
    Row(
        _task(
            "sotu-era",
            "When was the paragraph spoken: before 1865, 1865 to 1944, or from 1945 on?",
            ("before-1865", "1865-1944", "from-1945"),
            KINDS["classification"].metrics,
            score="accuracy",
        )
    ),
    Row(
        _task(
            "next",
            "Does a passage that begins with B follow one of the same document that ends with A?",
            ("other", "next"),
            KINDS["classification"].metrics,
            score="accuracy",
            follows=True,
        )
    ),
)
TASKS: dict[str, Row] = {row.task.name: row for row in ROWS}
