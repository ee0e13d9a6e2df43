"""Tasks as prompts for a model that was not fine-tuned, with the words for each class; and the shots that precede them.

Each task has a row in the table. The wordings are this project's own, in the manner of Brown et al. 2020, appendix G:
scores with different wordings are not comparable.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from pydantic import NonNegativeInt, PositiveInt

from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import KINDS, GlueTask
from plm_core.config import PositiveShare, UserError, section
from plm_core.corpus.normalize import shortened
from plm_core.objectives import OBJECTIVES
from plm_core.shared.files import sha256_text

SEAM = " "
"""What separates a prompt from an option. It is encoded with the option, whose first word it begins."""
_TEXT = re.compile(r"\{([ab])\}")


@section
class Prompt:
    """A section of ``fewshot.prompts``."""

    template: str
    """The prompt, with ``{a}`` in place of the text and, for a pair, ``{b}``. The option follows after a space."""
    options: dict[str, str] = field(default_factory=dict)
    """The words for each class, by its name; none for a multiple choice, whose examples have their own."""
    follows: bool = False
    """Whether ``{b}`` is asked about as the continuation of ``{a}``, whose last words are kept if texts are cut."""

    def __post_init__(self) -> None:
        if "{a}" not in self.template:
            raise ValueError(f"template: found {self.template!r}; expected {{a}} in place of the text")
        if self.template != self.template.rstrip():
            raise ValueError(f"template: found {self.template!r}; expected no whitespace at its end: a space is added")
        for label, option in self.options.items():
            if not option or option != option.strip():
                raise ValueError(f"options.{label}: found {option!r}; expected text without whitespace around it")
        if len(set(self.options.values())) < len(self.options):
            raise ValueError(f"options: found {', '.join(self.options.values())}; expected texts that differ")

    @property
    def ending(self) -> str:
        """What follows the last text in the template: the prompt without any text of the example."""
        return _TEXT.split(self.template)[-1].strip()

    def ask(self, example: Example, words: int | None = None) -> str:
        """The prompt of an example, each text cut to ``words`` words (None: whole), without trailing whitespace."""
        texts = {"a": shortened(example.a, words, last=self.follows), "b": shortened(example.b or "", words)}
        return _TEXT.sub(lambda match: texts[match.group(1)], self.template).rstrip()


@section
class FewshotConfig:
    """Section ``fewshot`` of the parameters."""

    models: list[str]
    """Names in ``models`` to be prompted: they must give texts a probability, as causal ones do; [] for none."""
    shots: list[NonNegativeInt]
    """The numbers of answered training examples before the question; each task is asked once with each number."""
    examples: PositiveInt | None
    """At most this many test examples per task; null for all."""
    words: PositiveInt | None
    """The most words of each text in a prompt (its first ones, unless the prompt says otherwise), so that shots fit
    into a small context; null for whole texts."""
    contaminated: PositiveShare | None
    """Examples with at least this share of their 8-grams in the training text are left out of the score; null: none."""
    seed: int
    """The seed for drawing shots."""
    tasks: list[str] | None = None
    """Sections of ``examples``, classifications and multiple choices; [] for none. Null: those of ``finetune.tasks``
    that have a prompt."""
    prompts: dict[str, Prompt] = field(default_factory=dict)
    """Prompts by task: for tasks of your own, and in place of those of the table."""

    def __post_init__(self) -> None:
        if len(set(self.shots)) < len(self.shots):
            raise ValueError(f"shots: found {self.shots}; expected each once")
        if len(set(self.tasks or ())) < len(self.tasks or ()):
            raise ValueError(f"tasks: found {', '.join(self.tasks or ())}; expected each once")

    def require_ranker(self, name: str, objective: str) -> None:
        """Raise UserError for a model that cannot say how likely an option is."""
        if OBJECTIVES[objective].ranker is None:
            able = ", ".join(key for key, other in OBJECTIVES.items() if other.ranker)
            raise UserError(
                f"fewshot.models: {name} is a {objective} model, which cannot say how likely a text is after another; "
                f"expected {able} ones: take it out"
            )

    def task_names(self, finetuned: Iterable[str]) -> list[str]:
        """The tasks that are asked, given ``finetune.tasks``."""
        if self.tasks is not None:
            return self.tasks
        return [name for name in finetuned if name in self.prompts or name in PROMPTS]


def prompt_of(task: GlueTask, own: Mapping[str, Prompt]) -> Prompt:
    """The prompt of a task: the team's own, or the row of the table; a multiple choice continues with its texts.

    Raises:
        UserError: there is none, it does not fit the task's classes, or the task's answers are not options.
    """
    where = f"fewshot.prompts.{task.name}"
    if not KINDS[task.kind].has_options:
        raise UserError(
            f"fewshot.tasks: {task.name} is of the kind {task.kind}, whose answers are not options; expected a "
            "classification or a multiple choice: take it out"
        )
    prompt = own.get(task.name) or PROMPTS.get(task.name)
    if KINDS[task.kind].has_choices:
        if prompt is not None and prompt.options:
            raise UserError(f"{where}.options: found some; expected none, because each example has its own choices")
        return prompt or GOES_ON
    if prompt is None:
        raise UserError(f"{where}: missing; expected a template and options for a task of your own")
    for label in task.labels:
        if label not in prompt.options:
            raise UserError(f"{where}.options: nothing for the class {label!r}; expected a text for each class")
    if more := prompt.options.keys() - set(task.labels):
        classes = ", ".join(task.labels)
        raise UserError(f"{where}.options.{min(more)}: no class of {task.name}; expected one of {classes}")
    return prompt


GOES_ON = Prompt("{a} {b}")
"""The prompt of a multiple choice, which each text continues."""
YES = {"entailment": "yes", "not_entailment": "no"}
PROMPTS: dict[str, Prompt] = {
    "cola": Prompt(
        "{a}\nQuestion: Is this sentence correct English?\nAnswer:", {"unacceptable": "no", "acceptable": "yes"}
    ),
    "sst2": Prompt("{a}\nAll in all, the film is", {"negative": "bad", "positive": "good"}),
    "mrpc": Prompt(
        "First: {a}\nSecond: {b}\nQuestion: Do both sentences say the same?\nAnswer:",
        {"not_equivalent": "no", "equivalent": "yes"},
    ),
    "qqp": Prompt(
        "First: {a}\nSecond: {b}\nQuestion: Do both ask the same?\nAnswer:", {"not_duplicate": "no", "duplicate": "yes"}
    ),
    "mnli": Prompt(
        "{a}\nClaim: {b}\nQuestion: Is the claim true, false or open?\nAnswer:",
        {"entailment": "true", "neutral": "open", "contradiction": "false"},
    ),
    "qnli": Prompt("Question: {a}\nText: {b}\nDoes the text answer the question?\nAnswer:", YES),
    "rte": Prompt("{a}\nClaim: {b}\nQuestion: Does the claim follow from the text?\nAnswer:", YES),
    "wnli": Prompt("{a}\nClaim: {b}\nQuestion: Does the claim follow from the sentence?\nAnswer:", YES),
    "sotu-era": Prompt(
        "{a}\nThis was said",
        {"before-1865": "before 1865", "1865-1944": "between 1865 and 1944", "from-1945": "after 1944"},
    ),
    "next": Prompt("First: {a}\nThen: {b}\nDoes it follow?", {"other": "no", "next": "yes"}, follows=True),
}
"""The prompts by task. STS-B of GLUE is left out: the answer of a regression is a number, not an option."""


# Shots: answered training examples before the question.


class Shots:
    """Draws shots for examples: a function of the seed, the example and the training set, and of nothing else."""

    def __init__(self, train: Sequence[Example], seed: int) -> None:
        """Shots are taken from ``train``, whose order does not matter."""
        self._seed = seed
        self._of_class: dict[int, list[Example]] = {}
        for example in sorted(train, key=lambda shot: shot.id):
            self._of_class.setdefault(int(example.label), []).append(example)

    def draw(self, example: Example, most: int) -> list[Example]:
        """At most ``most`` shots, the nearest to the question first; fewer if the training set has no more.

        The classes take turns, in an order that is drawn for the example: among consecutive shots each class occurs as
        often as any other, or once more, while it has examples left. A smaller number of shots is the beginning of a
        larger one. None has the same texts as the example itself.
        """
        source = random.Random(int(sha256_text(f"{self._seed}/{example.id}"), 16))
        classes = sorted(self._of_class)
        source.shuffle(classes)
        waiting = [_shuffled(self._of_class[label], source) for label in classes]
        shots: list[Example] = []
        while waiting:
            for of_class in list(waiting):
                if len(shots) == most:
                    return shots
                shot = next((shot for shot in of_class if set(shot.texts) != set(example.texts)), None)
                if shot is None:
                    waiting.remove(of_class)
                else:
                    shots.append(shot)
        return shots


def _shuffled(examples: Sequence[Example], source: random.Random) -> Iterator[Example]:
    """The examples in random order, drawn on demand (Durstenfeld 1964, algorithm 235)."""
    moved: dict[int, int] = {}
    for first in range(len(examples)):
        drawn = source.randrange(first, len(examples))
        yield examples[moved.get(drawn, drawn)]
        moved[drawn] = moved.pop(first, first)
