"""Check the parameters before the first stage: ``python -m tasks.check``, which `plm run` starts when work is due.

Every section is read as its stage reads it, and checked against the others as far as that needs no data. Exit status 0
and no output if all is well; otherwise 2 and a line per problem.
"""

import sys
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from plm_core.benchmarks.pairs import PairsConfig
from plm_core.benchmarks.prompts import FewshotConfig, prompt_of
from plm_core.benchmarks.sources import task_of
from plm_core.benchmarks.task import ExamplesConfig
from plm_core.config import UserError, choose
from plm_core.corpus.clean import CleanConfig
from plm_core.corpus.decontaminate import DecontaminateConfig
from plm_core.corpus.language import require_known
from plm_core.corpus.mixture import MixtureConfig, require_sources
from plm_core.corpus.sources import SOURCES
from plm_core.corpus.split import SplitConfig
from plm_core.evaluation.rules import GateRules
from plm_core.finetuning.config import FinetuneConfig
from plm_core.objectives import build_objective
from plm_core.sections.deduplicate import DeduplicateConfig
from plm_core.sections.evaluation import EvaluateConfig
from plm_core.shared import paths
from plm_core.shared.notices import NotifyConfig
from plm_core.shared.statuses import USER_ERROR
from plm_core.text.tokenizer import TokenizerConfig
from tasks.settings import params
from tasks.settings.pretraining import pretrain_section, require_start, require_trainable

T = TypeVar("T")
ALONE = {
    "deduplicate": DeduplicateConfig,
    "split": SplitConfig,
    "evaluate": EvaluateConfig,
    "notify": NotifyConfig,
}
"""Sections that are checked on their own."""


def problems() -> list[str]:
    """The problems with ``params.yaml``, a line each; empty if there are none."""
    found: list[str] = []

    def tried(check: Callable[..., T], *given: Any) -> T | None:
        try:
            return check(*given)
        except UserError as error:
            found.extend(error.lines())
            return None

    for name in tried(params.section_names, "sources") or []:
        tried(_source, name)
    for name, cls in ALONE.items():
        tried(params.section, name, cls)
    tried(params.without, "promotion", "registered_model", GateRules)
    for check in (_clean, _decontaminate, _mixture, _tokenizer):
        tried(check)
    for name in tried(params.names, "models") or []:
        tried(_model, name)
    for name in tried(params.section_names, "examples") or []:
        tried(_examples, name)
    for name in (sets := tried(params.section_names, "pairs") or []):
        tried(_pairs, name)
    tried(_require_distinct, "pairs", sets)
    tried(_finetune)
    if fewshot := tried(params.section, "fewshot", FewshotConfig):
        for name in fewshot.models:
            tried(_asked_model, name, fewshot)
        for name in fewshot.asked(tried(params.names, "finetune.tasks") or []):
            tried(_asked_task, name, fewshot)
        tried(params.require_examples, "fewshot.prompts", fewshot.prompts)
    return list(dict.fromkeys(found))


def _source(name: str) -> None:
    section = f"sources.{name}"
    source = choose(SOURCES, "reader", params.read(section), section)
    _require(source.input)
    source.origin()


def _clean() -> None:
    config = params.section("clean", CleanConfig)
    if config.languages is not None:
        require_known(config.languages)


def _decontaminate() -> None:
    for given in params.section("decontaminate", DecontaminateConfig).examples:
        _require(given.file)


def _mixture() -> None:
    require_sources(params.section("mixture", MixtureConfig), params.section_names("sources"))


def _tokenizer() -> None:
    if given := params.section("tokenizer", TokenizerConfig).given:
        _require(given.file)


def _model(name: str) -> None:
    section = f"pretrain.{name}"
    config = pretrain_section(name)
    tokenizer = params.section("tokenizer", TokenizerConfig)
    require_trainable(config, tokenizer.vocab_size, section)
    require_start(config, tokenizer.given.sha256 if tokenizer.given else None, section)


def _examples(name: str) -> None:
    config = params.section(f"examples.{name}", ExamplesConfig)
    task_of(name, config)
    _require(config.input)


def _pairs(name: str) -> None:
    _require(params.section(f"pairs.{name}", PairsConfig).input)
    if name in params.section_names("examples"):
        raise UserError(f"pairs.{name}: examples has a section of the same name; expected a different name")


def _finetune() -> None:
    config = params.section("finetune", FinetuneConfig)
    params.require_examples("finetune.tasks", config.tasks)
    params.require_examples("finetune.transfers", (transfer.task for transfer in config.transfers))
    _require_distinct("finetune.tasks", config.tasks)
    _require_distinct("finetune.transfers", (transfer.task for transfer in config.transfers))


def _require_distinct(where: str, names: Iterable[str]) -> None:
    """Raise UserError if a model with one of these names would be the same stage as another model with another one."""
    made: dict[str, str] = {}
    for model, name in product(params.names("models"), names):
        this = f"{model} with {name}"
        if (other := made.setdefault(f"{model}-{name}", this)) != this:
            raise UserError(f"models, {where}: {other} and {this} would both be {model}-{name}; expected other names")


def _asked_model(name: str, config: FewshotConfig) -> None:
    if name not in (known := params.names("models")):
        raise UserError(f"fewshot.models: found {name!r}; expected some of models: {', '.join(known)}")
    objective = pretrain_section(name).objective
    build_objective(objective, f"pretrain.{name}.objective")
    config.require_ranker(name, objective["name"])


def _asked_task(name: str, config: FewshotConfig) -> None:
    params.require_examples("fewshot.tasks", [name])
    prompt_of(task_of(name, params.section(f"examples.{name}", ExamplesConfig)), config.prompts)


def _require(path: str) -> None:
    """Raise UserError for an input that does not exist and that no stage writes."""
    if not Path(path).is_relative_to(paths.ARTIFACTS) and not Path(path).exists():
        raise params.missing(Path(path))


if __name__ == "__main__":
    for problem in (found := problems()):
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(USER_ERROR if found else 0)
