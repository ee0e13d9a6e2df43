"""The tables of GLUE-like tasks, and of where their data is published. Read by the stage examples.

The first nine tasks are GLUE's, followed by those of other benchmarks and those made from the corpus.

Names of classes, their order and the numbers of rows are those of ``nyu-mll/glue`` on the Hugging Face hub; metrics are
those of Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding",
table 1 (except CoLA's accuracy and F1 without a class). A main score of several metrics is their mean, as there. The
numbers of the others are those of Tjong Kim Sang and De Meulder 2003, table 1, minus the lines that begin a document;
Rajpurkar et al. 2016 and 2018; Zellers et al. 2018, "SWAG: A Large-Scale Adversarial Dataset for Grounded Commonsense
Inference", section 3.
"""

from dataclasses import dataclass
from typing import Any

from plm_core.benchmarks.example_readers import Columns
from plm_core.benchmarks.task import KINDS, GlueTask, iob2


@dataclass(frozen=True)
class SplitFile:
    """One file of a task, or one split on the hub."""

    file: str
    """The official file, without its ``.tsv``; ``train`` and ``valid`` are these splits, all others are for testing."""
    rows: int
    """The number of labelled, complete rows, or of sentences or questions."""
    subset: str = ""
    """The ``subset`` of its examples."""
    names: tuple[str, ...] = ()
    """The names that the official file may have, if different."""

    @property
    def hub(self) -> str:
        """The split on the hub."""
        return self.file.replace("dev", "validation")


@dataclass(frozen=True)
class PublishedFiles:
    """A task as it is distributed; its train part comes first."""

    folder: str
    """The folder of the official download."""
    columns: Columns | None
    """The columns of the official files; None if they are not tables."""
    hub: Columns | None
    """The columns of the dataset on the hub, whose configuration has the task's name; None: only files are read."""
    parts: tuple[SplitFile, ...]
    header: tuple[str, ...] | None = None
    """The columns of official files that have no header."""
    coded: bool = True
    """Whether the official files write the id of a class, not its name."""
    ragged: bool = False
    """Whether the official files hold rows with too few columns or an empty text, which readers drop."""


@dataclass(frozen=True)
class TaskRow:
    """The task, and where its data is published; None for a task made from the corpus."""

    task: GlueTask
    published: PublishedFiles | None


def _task(
    name: str,
    question: str,
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    kind: str = "classification",
    **more: Any,
) -> GlueTask:
    """A task; unless stated, its main score is the mean of its metrics."""
    return GlueTask(name, kind, question, labels, metrics, **{"score": "+".join(metrics)} | more)


def _read(name: str, question: str, unanswerable: bool) -> GlueTask:
    metrics = KINDS["question_answering"].metrics
    return _task(name, question, (), metrics, "question_answering", score="answer_f1", unanswerable=unanswerable)


ACCURACY = ("accuracy",)
COUNTED = KINDS["classification"].metrics
ACCEPTABLE = ("unacceptable", "acceptable")
EQUIVALENT = ("not_equivalent", "equivalent")
DUPLICATE = ("not_duplicate", "duplicate")
ENTAILMENT = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")
ERAS = ("before-1865", "1865-1944", "from-1945")

_TASKS = (
    _task("cola", "Is the sentence acceptable English?", ACCEPTABLE, ("matthews", "accuracy"), score="matthews"),
    _task("sst2", "Is what the phrase says of a film positive?", ("negative", "positive"), ACCURACY),
    _task("mrpc", "Do the two sentences say the same?", EQUIVALENT, ("accuracy", "f1:equivalent"), symmetric=True),
    _task("qqp", "Do the two questions ask the same?", DUPLICATE, ("accuracy", "f1:duplicate"), symmetric=True),
    _task(
        "stsb",
        "How alike in meaning are the two sentences, from 0 to 5?",
        (),
        KINDS["regression"].metrics,
        "regression",
        symmetric=True,
        span=(0.0, 5.0),
    ),
    _task("mnli", "Does the premise entail the hypothesis, contradict it, or neither?", MNLI, ACCURACY),
    _task("qnli", "Does the sentence contain the answer to the question?", ENTAILMENT, ACCURACY),
    _task("rte", "Does the text entail the hypothesis?", ENTAILMENT, ACCURACY),
    _task("wnli", "Does the sentence entail the one in which its pronoun is replaced?", ENTAILMENT[::-1], ACCURACY),
    _task(
        "conll2003",
        "Which words name a person, a place, an organisation, or something else?",
        iob2(("PER", "LOC", "ORG", "MISC")),
        KINDS["token_classification"].metrics,
        "token_classification",
    ),
    _read("squad", "Where in the text is the answer?", unanswerable=False),
    _read("squad2", "Where in the text is the answer, if it is there?", unanswerable=True),
    _task("swag", "Which of four continues what is seen?", ("0", "1", "2", "3"), ACCURACY, "multiple_choice"),
    _task(
        "sotu-era",
        "When was the paragraph spoken: before 1865, 1865 to 1944, or from 1945 on?",
        ERAS,
        COUNTED,
        score="accuracy",
    ),
    _task(
        "next",
        "Does a passage that begins with B follow one of the same document that ends with A?",
        ("other", "next"),
        COUNTED,
        score="accuracy",
        follows=True,
    ),
    _task(
        "passages",
        "Which passage begins with this sentence?",
        (),
        KINDS["search"].metrics,
        "search",
        score="ndcg_at_10",
    ),
)

SENTENCE = Columns("sentence", None, "label")
SENTENCES = Columns("sentence1", "sentence2", "label")
QUESTION = Columns("question", "sentence", "label")
ENDINGS = Columns("sent1", "sent2", "label", choices=("ending0", "ending1", "ending2", "ending3"))


def _glue(train: int, dev: int) -> tuple[SplitFile, ...]:
    return SplitFile("train", train), SplitFile("dev", dev)


_PUBLISHED = {
    "cola": PublishedFiles(
        "CoLA", SENTENCE, SENTENCE, _glue(8551, 1043), header=("source", "label", "mark", "sentence")
    ),
    "sst2": PublishedFiles("SST-2", SENTENCE, SENTENCE, _glue(67349, 872)),
    "mrpc": PublishedFiles("MRPC", Columns("#1 String", "#2 String", "Quality"), SENTENCES, _glue(3668, 408)),
    "qqp": PublishedFiles(
        "QQP",
        Columns("question1", "question2", "is_duplicate"),
        Columns("question1", "question2", "label"),
        _glue(363846, 40430),
        ragged=True,
    ),
    "stsb": PublishedFiles("STS-B", Columns("sentence1", "sentence2", "score"), SENTENCES, _glue(5749, 1500)),
    "mnli": PublishedFiles(
        "MNLI",
        Columns("sentence1", "sentence2", "gold_label"),
        Columns("premise", "hypothesis", "label"),
        (
            SplitFile("train", 392702),
            SplitFile("dev_matched", 9815, "matched"),
            SplitFile("dev_mismatched", 9832, "mismatched"),
        ),
        coded=False,
    ),
    "qnli": PublishedFiles("QNLI", QUESTION, QUESTION, _glue(104743, 5463), coded=False),
    "rte": PublishedFiles("RTE", SENTENCES, SENTENCES, _glue(2490, 277), coded=False),
    "wnli": PublishedFiles("WNLI", SENTENCES, SENTENCES, _glue(635, 71)),
    "conll2003": PublishedFiles(
        "CoNLL-2003",
        None,
        None,
        (
            SplitFile("train", 14041, names=("eng.train", "train.txt")),
            SplitFile("valid", 3250, names=("eng.testa", "valid.txt")),
            SplitFile("test", 3453, names=("eng.testb", "test.txt")),
        ),
    ),
    "squad": PublishedFiles(
        "SQuAD 1.1",
        None,
        None,
        (SplitFile("train", 87599, names=("train-v1.1.json",)), SplitFile("dev", 10570, names=("dev-v1.1.json",))),
    ),
    "squad2": PublishedFiles(
        "SQuAD 2.0",
        None,
        None,
        (SplitFile("train", 130319, names=("train-v2.0.json",)), SplitFile("dev", 11873, names=("dev-v2.0.json",))),
    ),
    "swag": PublishedFiles(
        "SWAG",
        ENDINGS,
        None,
        (SplitFile("train", 73546, names=("train.csv",)), SplitFile("val", 20006, names=("val.csv",))),
    ),
}
TASKS: dict[str, TaskRow] = {task.name: TaskRow(task, _PUBLISHED.get(task.name)) for task in _TASKS}
