"""The table of GLUE-like tasks: a task is a row. Read by the stage examples.

Names of classes, their order and the numbers of rows are those of ``nyu-mll/glue`` on the Hugging Face hub; metrics are
those of Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding",
table 1 (CoLA's accuracy and the F1 of no class beside). A main score of several metrics is their mean, as there.
"""

from dataclasses import dataclass

from plm_core.finetuning.task import METRICS, GlueTask


@dataclass(frozen=True)
class Columns:
    """Which columns of a table mean something."""

    a: str
    b: str | None
    label: str
    id: str | None = None
    """A unique id; None: the part and the number of the row."""


@dataclass(frozen=True)
class Part:
    """One file of a task, or one split on the hub."""

    file: str
    """The official file, without its ``.tsv``."""
    hub: str
    """The split on the hub."""
    rows: int
    """How many rows there are, labelled and with all their columns."""
    subset: str = ""
    """What an example of it says in ``subset``."""


@dataclass(frozen=True)
class Published:
    """A GLUE task as it is distributed; its train part comes first, its dev parts are the test split here."""

    folder: str
    """The folder of the official download."""
    columns: Columns
    """Of the official files."""
    hub: Columns
    """Of the dataset on the hub; the configuration there has the task's name."""
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


def _parts(train: int, dev: int) -> tuple[Part, ...]:
    return Part("train", "train", train), Part("dev", "validation", dev)


def _task(name: str, question: str, labels: tuple[str, ...], metrics: tuple[str, ...], **more: bool | str) -> GlueTask:
    return GlueTask(name, "classification", question, labels, metrics, **{"score": "+".join(metrics)} | more)  # type: ignore[arg-type]


SENTENCES = Columns("sentence1", "sentence2", "label")
ENTAILMENT = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")

ROWS = (
    Row(
        _task(
            "cola",
            "Is the sentence acceptable English?",
            ("unacceptable", "acceptable"),
            ("matthews", "accuracy"),
            score="matthews",
        ),
        Published(
            "CoLA",
            Columns("sentence", None, "label"),
            Columns("sentence", None, "label"),
            _parts(8551, 1043),
            header=("source", "label", "mark", "sentence"),
        ),
    ),
    Row(
        _task("sst2", "Is what the phrase says of a film positive?", ("negative", "positive"), ("accuracy",)),
        Published("SST-2", Columns("sentence", None, "label"), Columns("sentence", None, "label"), _parts(67349, 872)),
    ),
    Row(
        _task(
            "mrpc",
            "Do the two sentences say the same?",
            ("not_equivalent", "equivalent"),
            ("accuracy", "f1:equivalent"),
            symmetric=True,
        ),
        Published("MRPC", Columns("#1 String", "#2 String", "Quality"), SENTENCES, _parts(3668, 408)),
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
            _parts(363846, 40430),
            ragged=True,
        ),
    ),
    Row(
        GlueTask(
            "stsb",
            "regression",
            "How alike in meaning are the two sentences, from 0 to 5?",
            (),
            METRICS["regression"],
            "pearson+spearman",
            symmetric=True,
            span=(0.0, 5.0),
        ),
        Published("STS-B", Columns("sentence1", "sentence2", "score"), SENTENCES, _parts(5749, 1500)),
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
        _task("qnli", "Does the sentence hold the answer to the question?", ENTAILMENT, ("accuracy",)),
        Published(
            "QNLI",
            Columns("question", "sentence", "label"),
            Columns("question", "sentence", "label"),
            _parts(104743, 5463),
            coded=False,
        ),
    ),
    Row(
        _task("rte", "Does the text entail the hypothesis?", ENTAILMENT, ("accuracy",)),
        Published("RTE", SENTENCES, SENTENCES, _parts(2490, 277), coded=False),
    ),
    Row(
        _task(
            "wnli",
            "Does the sentence entail the one in which its pronoun is replaced?",
            ("not_entailment", "entailment"),
            ("accuracy",),
        ),
        Published("WNLI", SENTENCES, SENTENCES, _parts(635, 71)),
    ),
    Row(
        _task(
            "sotu-era",
            "When was the paragraph spoken: before 1865, 1865 to 1944, or from 1945 on?",
            ("before-1865", "1865-1944", "from-1945"),
            METRICS["classification"],
            score="accuracy",
        )
    ),
    Row(
        _task(
            "sotu-next",
            "Does paragraph B follow paragraph A in the same speech?",
            ("other", "next"),
            METRICS["classification"],
            score="accuracy",
        )
    ),
)
TASKS: dict[str, Row] = {row.task.name: row for row in ROWS}
