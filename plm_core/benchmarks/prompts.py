"""Tasks as prompts: what a model that was not fine-tuned is asked, and how each class is said. A task is a row.

Used by the stage fewshot and the report. The wordings are this project's own, in the manner of Brown et al. 2020,
appendix G: scores by other wordings are other scores.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field

from pydantic import NonNegativeInt, PositiveInt

from plm_core.benchmarks.examples import Example
from plm_core.benchmarks.task import GlueTask
from plm_core.config import PositiveShare, UserError, section
from plm_core.corpus.normalize import shortened
from plm_core.objectives import OBJECTIVES

_TEXT = re.compile(r"\{([ab])\}")


@section
class Prompt:
    """A section of ``fewshot.prompts``."""

    template: str
    """The prompt, with ``{a}`` where the text stands and, of a pair, ``{b}``. The option follows after a blank."""
    options: dict[str, str] = field(default_factory=dict)
    """What each class is called, by its name; none for a multiple choice, whose examples bring their own."""
    follows: bool = False
    """Whether ``{b}`` is asked about as what follows ``{a}``: where texts are cut, the last words of ``{a}`` stay."""

    def __post_init__(self) -> None:
        if "{a}" not in self.template:
            raise ValueError(f"template: found {self.template!r}; expected {{a}} where the text stands")
        if self.template != self.template.rstrip():
            raise ValueError(f"template: found {self.template!r}; expected no white space at its end: a blank follows")
        for label, option in self.options.items():
            if not option or option != option.strip():
                raise ValueError(f"options.{label}: found {option!r}; expected text without white space around it")
        if len(set(self.options.values())) < len(self.options):
            raise ValueError(f"options: found {', '.join(self.options.values())}; expected texts that differ")

    @property
    def ending(self) -> str:
        """What the template has behind its last text: the prompt of an example of which nothing is told."""
        return _TEXT.split(self.template)[-1].strip()

    def ask(self, example: Example, words: int | None = None) -> str:
        """The prompt of an example, each text cut to so many ``words`` (None: whole); no white space ends it."""
        texts = {"a": shortened(example.a, words, last=self.follows), "b": shortened(example.b or "", words)}
        return _TEXT.sub(lambda found: texts[found.group(1)], self.template).rstrip()


@section
class FewshotConfig:
    """Section ``fewshot`` of the parameters."""

    models: list[str]
    """Names in ``models``, of those that give an option a probability, which causal ones do; [] for none."""
    shots: list[NonNegativeInt]
    """Each task is asked once with each number of answered training examples before the question."""
    examples: PositiveInt | None
    """At most so many test examples a task; null for all."""
    words: PositiveInt | None
    """At most so many words of each text stand in a prompt, its first ones where the prompt does not say otherwise, so
    that shots fit a small context; null for whole texts."""
    contaminated: PositiveShare | None
    """From which share of its 8-grams in the training text an example is left out of the score; null: never."""
    seed: int
    """Draws the shots."""
    tasks: list[str] | None = None
    """Sections of ``examples``, classifications and multiple choices; [] for none. Null: those of ``finetune.tasks``
    that have a prompt."""
    prompts: dict[str, Prompt] = field(default_factory=dict)
    """By task: for tasks of your own, and in place of those of the table."""

    def __post_init__(self) -> None:
        if len(set(self.shots)) < len(self.shots):
            raise ValueError(f"shots: found {self.shots}; expected each once")
        if len(set(self.tasks or ())) < len(self.tasks or ()):
            raise ValueError(f"tasks: found {', '.join(self.tasks or ())}; expected each once")

    def require_ranker(self, name: str, objective: str) -> None:
        """Raise UserError for a model that cannot say how likely an option is."""
        if OBJECTIVES[objective].ranker is None:
            able = ", ".join(each for each, other in OBJECTIVES.items() if other.ranker)
            raise UserError(
                f"fewshot.models: {name} is a {objective} model, which says of no text how likely it follows another; "
                f"expected {able} ones: take it out"
            )

    def asked(self, finetuned: Iterable[str]) -> list[str]:
        """The tasks that are asked, given ``finetune.tasks``."""
        if self.tasks is not None:
            return self.tasks
        return [name for name in finetuned if name in self.prompts or name in PROMPTS]


def prompt_of(task: GlueTask, own: Mapping[str, Prompt]) -> Prompt:
    """The prompt of a task: the team's own, or the row of the table; a multiple choice goes on with its texts.

    Raises:
        UserError: there is none, it does not fit the task's classes, or the task's answers are no options.
    """
    where = f"fewshot.prompts.{task.name}"
    if task.kind not in ("classification", "multiple_choice"):
        raise UserError(
            f"fewshot.tasks: {task.name} is of the kind {task.kind}, whose answers are no options; expected a "
            "classification or a multiple choice: take it out"
        )
    prompt = own.get(task.name) or PROMPTS.get(task.name)
    if task.kind == "multiple_choice":
        if prompt is not None and prompt.options:
            raise UserError(f"{where}.options: found some; expected none, for each example has its own choices")
        return prompt or GOES_ON
    if prompt is None:
        raise UserError(f"{where}: missing; expected a template and options for a task of your own")
    for label in task.labels:
        if label not in prompt.options:
            raise UserError(f"{where}.options: nothing for the class {label!r}; expected a text for each class")
    if more := prompt.options.keys() - set(task.labels):
        known = ", ".join(task.labels)
        raise UserError(f"{where}.options.{min(more)}: no class of {task.name}; expected one of {known}")
    return prompt


GOES_ON = Prompt("{a} {b}")
"""Of a multiple choice: each text goes on with what is told."""
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
"""By the name of the task. Of GLUE's nine, STS-B is left out: the answer of a regression is a number, not an option."""
