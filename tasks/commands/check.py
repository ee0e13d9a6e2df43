"""Check the parameters before the first stage: ``python -m tasks.commands.check``, which `plm run` starts when work is
due.

Every section is read as its stage reads it, and checked against the others as far as possible without data. Exit status
0 and no output if all is well; otherwise 2 and a line per problem.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plm_core.benchmarks.pair_sets import PairsConfig
from plm_core.benchmarks.prompts import FewshotConfig, prompt_of
from plm_core.benchmarks.task import ExamplesConfig
from plm_core.benchmarks.task_sources import task_of
from plm_core.config import UserError, choose
from plm_core.configs.stage_configs import DeduplicateConfig, EvaluateConfig
from plm_core.corpus.cleaning import CleanConfig
from plm_core.corpus.decontamination import DecontaminateConfig
from plm_core.corpus.language import require_known
from plm_core.corpus.sources import SOURCES
from plm_core.corpus.splits_and_mixtures import MixtureConfig, SplitConfig, require_sources
from plm_core.evaluation.gate_rules import GateRules
from plm_core.finetuning.finetune_config import FinetuneConfig
from plm_core.objectives import build_objective
from plm_core.shared import paths
from plm_core.shared.errors import USER_ERROR
from plm_core.shared.options import NotifyConfig
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import TokenizerConfig
from tasks.parameters import stage_parameters
from tasks.parameters.pretrain_config import pretrain_section, require_start, require_trainable

SECTIONS = {
    "clean": CleanConfig,
    "deduplicate": DeduplicateConfig,
    "split": SplitConfig,
    "decontaminate": DecontaminateConfig,
    "mixture": MixtureConfig,
    "evaluate": EvaluateConfig,
    "finetune": FinetuneConfig,
    "fewshot": FewshotConfig,
    "notify": NotifyConfig,
}


def problems() -> list[str]:
    """The problems with ``params.yaml``, a line each; empty if there are none."""
    lines: list[str] = []

    @contextlib.contextmanager
    def tried() -> Iterator[None]:
        try:
            yield
        except UserError as error:
            lines.extend(error.lines())

    # Each section by itself; what cannot be read is checked no further.
    names: dict[str, list[str]] = {key: [] for key in ("sources", "examples", "pairs", "tokenizers", "finetune.tasks")}
    for name in names:
        with tried():
            read_names = stage_parameters.name_list if name == "finetune.tasks" else stage_parameters.section_names
            names[name] = read_names(name)
    models: dict[str, str] = {}
    with tried():
        models = stage_parameters.models()
    sections: dict[str, Any] = dict.fromkeys(SECTIONS)
    for name, cls in SECTIONS.items():
        with tried():
            sections[name] = stage_parameters.section(name, cls)
    with tried():
        stage_parameters.without_parameter("promotion", "registered_model", GateRules)

    # The text, and what is made of it.
    for name in names["sources"]:
        with tried():
            source = choose(SOURCES, "reader", stage_parameters.read(f"sources.{name}"), f"sources.{name}")
            _require(source.input)
            source.origin()
    if (clean := sections["clean"]) and clean.languages is not None:
        with tried():
            require_known(clean.languages)
    for given in sections["decontaminate"].examples if sections["decontaminate"] else ():
        with tried():
            _require(given.file)
    if (mixture := sections["mixture"]) and names["sources"]:
        with tried():
            require_sources(mixture, names["sources"])
    tokenizers: dict[str, TokenizerConfig] = {}
    starts: dict[str, tuple[str, ...]] = {}
    for name in names["tokenizers"]:
        with tried():
            tokenizers[name] = stage_parameters.section(f"tokenizers.{name}", TokenizerConfig)
            if given := tokenizers[name].given:
                _require(given.file)
                starts[name] = open_tokenizer(Path(given.file)).starts

    # Models, and what they are evaluated on.
    for name, tokenizer_name in models.items():
        with tried():
            config, _ = pretrain_section(name)
            if tokenizer := tokenizers.get(tokenizer_name):
                require_trainable(config, tokenizer.vocab_size, f"pretrain.{name}")
                require_start(config, starts.get(tokenizer_name, ()), f"pretrain.{name}")
    for name in names["examples"]:
        with tried():
            examples = stage_parameters.section(f"examples.{name}", ExamplesConfig)
            task_of(name, examples)
            _require(examples.input)
    for name in names["pairs"]:
        with tried():
            _require(stage_parameters.section(f"pairs.{name}", PairsConfig).input)
            if name in names["examples"]:
                raise UserError(f"pairs.{name}: examples has a section of the same name; expected a different name")
    sets = {"pairs": names["pairs"]}
    if finetune := sections["finetune"]:
        sets["finetune.tasks"] = finetune.tasks
        for name in finetune.features.models if finetune.features else ():
            with tried():
                if name not in models:
                    raise UserError(f"finetune.features.models: found {name!r}; expected some of {', '.join(models)}")
        sets["finetune.transfers"] = [transfer.task for transfer in finetune.transfers]
    for where, tasks in sets.items():
        with tried():
            if where != "pairs":
                stage_parameters.require_examples(where, tasks)
            # A model with one task must not be the same stage as another model with another one.
            made: dict[str, str] = {}
            for model in models:
                for name in tasks:
                    both = f"{model} with {name}"
                    if (other := made.setdefault(f"{model}-{name}", both)) != both:
                        reason = f"models, {where}: {other} and {both} would both be {model}-{name}"
                        raise UserError(f"{reason}; expected other names")
    if fewshot := sections["fewshot"]:
        for name in fewshot.models:
            with tried():
                if name not in models:
                    expected = f"some of models: {', '.join(models)}"
                    raise UserError(f"fewshot.models: found {name!r}; expected {expected}")
                objective = pretrain_section(name)[0].objective
                build_objective(objective, f"pretrain.{name}.objective")
                fewshot.require_ranker(name, objective["name"])
        for name in fewshot.task_names(names["finetune.tasks"]):
            with tried():
                stage_parameters.require_examples("fewshot.tasks", [name])
                prompt_of(task_of(name, stage_parameters.section(f"examples.{name}", ExamplesConfig)), fewshot.prompts)
        with tried():
            stage_parameters.require_examples("fewshot.prompts", fewshot.prompts)
    return list(dict.fromkeys(lines))


def _require(path: str) -> None:
    """Raise UserError for an input that does not exist and that no stage writes."""
    if not Path(path).is_relative_to(paths.ARTIFACTS) and not Path(path).exists():
        raise stage_parameters.missing_input(Path(path))


if __name__ == "__main__":
    for problem in (refused := problems()):
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(USER_ERROR if refused else 0)
