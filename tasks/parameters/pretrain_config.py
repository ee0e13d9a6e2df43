"""A section of ``pretrain``, and its checks that need neither data nor torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from plm_core.config import UserError, from_dict, section
from plm_core.configs.architectures import MODELS, differing_sizes, shape
from plm_core.configs.checkpoint_description import CONFIG_FILE, CheckpointConfig, read_description
from plm_core.objectives import build_objective
from plm_core.shared.files import CHECKSUMS, sha256_file
from plm_core.text.replay import new_and_replayed
from plm_core.text.samplers import stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.training.size_presets import fill_in_size
from plm_core.training.training_config import DistillationConfig, LoopConfig, LoRAConfig
from tasks.parameters import stage_parameters


@section
class StartConfig:
    """Section ``pretrain.<name>.start``; the digest is there so that DVC notices a change of the checkpoint."""

    checkpoint: str
    """A checkpoint's folder, such as ``plm import`` writes."""
    sha256: str
    """Its digest, as ``plm import`` prints it."""


@section
class TeacherConfig(DistillationConfig, StartConfig):
    """Section ``pretrain.<name>.teacher``: the checkpoint of a model at least as large, and what is learned from it."""


@section
class CarryOnConfig:
    """Section ``pretrain.<name>.carry_on``."""

    steps: PositiveInt
    """The number of weight updates of a night that carries on; the rate rises and falls in them as it does in
    ``training.steps`` (Ibrahim et al. 2024, section 4)."""
    replay: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """The least share of old text in what such a night reads; more, if there is not enough new text for its steps."""
    rate: Annotated[float, Field(gt=0, le=1)] = 0.3
    """The peak of the learning rate in these steps, as a share of the section's."""
    nights: PositiveInt = 30
    """After this many runs that carried on, the next begins anew, and the gate compares the two."""


@section
class PretrainConfig:
    """Section ``pretrain.<name>`` of the parameters."""

    architecture: str
    """A name in ``plm_core.configs.architectures.MODELS``."""
    objective: dict[str, Any]
    """``name``, one in ``plm_core.objectives.OBJECTIVES``, and that objective's own parameters."""
    model: dict[str, Any]
    """The architecture's configuration, without the vocabulary; ``preset`` names a published size to start from."""
    training: LoopConfig
    """The loop and its optimizer."""
    valid_windows: PositiveInt = 256
    """How many windows of the validation split are used to choose the best checkpoint."""
    start: StartConfig | None = None
    """The checkpoint whose weights and tokenizer training starts from, with the same ``architecture`` and ``model``;
    null to start from random weights."""
    lora: LoRAConfig | None = None
    """Only with a ``start``: train only what follows the blocks, and small additions to the blocks' matrices, which are
    merged into them at the end; null to train all weights."""
    teacher: TeacherConfig | None = None
    """The model to learn from (distillation), made with the same tokenizer and objective. Without a ``start``, training
    begins with its layers, every second one if they are twice as many, if the other sizes are the same."""
    carry_on: CarryOnConfig | None = None
    """When new text has come, training begins with the model of the run before; null to begin anew each time."""
    row_length: PositiveInt | None = None
    """The number of tokens in a row of a batch, at most ``model.context``, which is the default. Short rows cost less
    (Devlin et al. 2019, appendix A.2)."""

    def __post_init__(self) -> None:
        if "vocab_size" in self.model:
            raise ValueError("model.vocab_size: is that of the tokenizer; expected it to be left out")
        if self.start is None and (self.lora or not self.training.steps):
            what = "lora: found a section" if self.lora else "training.steps: found 0"
            raise ValueError(f"{what}, but no start; expected a published model to start from (`plm import`)")

    def rows(self, sizes: Any) -> Any:
        """The model's sizes, with the length of the rows of a batch as their context.

        Raises:
            ValueError: ``row_length`` is more than the model's context.
        """
        if (length := self.row_length or sizes.context) > sizes.context:
            raise ValueError(f"row_length: {length} is more than model.context ({sizes.context})")
        return replace(sizes, context=length)

    def new_text(self, store: TokenStore, sizes: Any, ancestor: Path, digest: str) -> tuple[TokenStore, int]:
        """What a run reads that carries on from ``ancestor``, a checkpoint with this digest, and the number of its
        documents that are new to it; the whole store if none is."""
        assert self.carry_on is not None
        least = self.carry_on.steps * self.training.batch * self.rows(sizes).context
        seed = stream_seed(self.training.seed, "replay", digest)
        some, new = new_and_replayed(store, ancestor, self.carry_on.replay, least, seed)
        return (some, new) if new else (store, 0)


def pretrain_section(name: str) -> tuple[PretrainConfig, dict[str, Any]]:
    """Section ``pretrain.<name>``, and its parameters with what its ``size`` fills in."""
    section = f"pretrain.{name}"
    given = stage_parameters.read(section)
    filled = fill_in_size(given, section)
    return from_dict(PretrainConfig, filled, section), given | filled


def require_start(config: PretrainConfig, starts: Sequence[str], section: str) -> None:
    """Check the checkpoints to start from and to learn from, if there are any, without reading their weights.

    ``starts`` are those of the tokenizer; empty if they are not known yet.

    Raises:
        UserError: one is missing, not the one that ``sha256`` names, or made with another tokenizer; the model to start
            from is another one; or the teacher is smaller than its student, or cannot teach it what it is to learn.
    """
    if config.start:
        theirs, their_model = _described(config.start, starts, f"{section}.start")
        source = f"as in {config.start.checkpoint}, from which it starts"
        if config.architecture != theirs.architecture:
            problem = f"{section}.architecture: found {config.architecture}"
            raise UserError(f"{problem}; expected {theirs.architecture}, {source}")
        model = shape(config.architecture, config.model | {"vocab_size": their_model.vocab_size}, section)
        if names := differing_sizes(model, their_model):
            ours, expected = (", ".join(f"{n}: {getattr(m, n)}" for n in names) for m in (model, their_model))
            raise UserError(f"{section}.model: found {ours}; expected {expected}, {source}")
    if teacher := config.teacher:
        theirs, their_model = _described(teacher, starts[-1:], f"{section}.teacher")
        student = shape(config.architecture, config.model | {"vocab_size": their_model.vocab_size}, section)
        student = replace(student, context=config.row_length or student.context)
        objective = build_objective(config.objective, f"{section}.objective")
        losses = [] if getattr(objective, "streams", False) else objective.distilled
        name = config.objective["name"]
        for loss in ("soft", "cosine", "relations"):
            if getattr(teacher, loss) and loss not in losses:
                able = " and ".join(losses) or "no teacher"
                raise UserError(f"{section}.teacher.{loss}: objective {name} cannot learn by it; expected {able}")
        learned = theirs.objective if theirs.predicts or not teacher.soft else "no predictions"
        if learned != name:
            problem = f"{section}.teacher.checkpoint: {teacher.checkpoint} has learned {learned}"
            raise UserError(f"{problem}; expected {name}, as the student does")
        for size in ("layers", "width", "context"):
            if (ours := getattr(student, size)) > (most := getattr(their_model, size)):
                expected = f"at most {most}, as in its teacher {teacher.checkpoint}"
                raise UserError(f"{section}.model.{size}: found {ours}; expected {expected}")
        ours, most = student.width, their_model.width
        if teacher.cosine and ours != most:
            problem = f"{section}.teacher.cosine: found {teacher.cosine:g} for width {ours} and a teacher's {most}"
            raise UserError(f"{problem}; expected 0, and relations above 0")
        if teacher.relations and (ours % teacher.relation_heads or most % teacher.relation_heads):
            problem = f"{section}.teacher.relation_heads: {teacher.relation_heads} does not divide both widths"
            raise UserError(f"{problem}, {ours} and the teacher's {most}")


def _described(start: StartConfig, starts: Sequence[str], where: str) -> tuple[CheckpointConfig, Any]:
    """The description of a checkpoint and its model's sizes; raises UserError as ``require_start`` does of both."""
    folder = Path(start.checkpoint)
    if not (folder / CHECKSUMS).is_file():
        raise UserError(f"{where}.checkpoint: {folder} is missing; expected a checkpoint (`plm import`)")
    if (digest := sha256_file(folder / CHECKSUMS)) != start.sha256:
        raise UserError(f"{where}.sha256: {folder} is {digest}; expected {start.sha256}")
    theirs = read_description(folder)
    if starts and theirs.tokenizer_sha256 not in starts:
        raise UserError(
            f"{where}.checkpoint: {folder} was made with another tokenizer; expected in its section of tokenizers: "
            f"given: {{file: {open_tokenizer(folder).path}, sha256: {theirs.tokenizer_sha256}}}"
        )
    return theirs, shape(theirs.architecture, theirs.model, str(folder / CONFIG_FILE))


def require_trainable(config: PretrainConfig, vocab_size: int, section: str) -> None:
    """Check everything about a pretraining run that needs no data.

    Raises:
        UserError: the section describes no model, or one that its objective does not train.
    """
    model = shape(config.architecture, config.model | {"vocab_size": vocab_size}, section)
    objective = build_objective(config.objective, f"{section}.objective")
    if (wanted := config.objective["name"]) not in (able := MODELS[config.architecture].objectives):
        raise UserError(
            f"{section}.objective.name: {wanted} cannot train architecture {config.architecture}; expected "
            f"{' or '.join(able)}"
        )
    try:
        objective.require_fit(config.rows(model))
    except ValueError as error:
        raise UserError(f"{section}.{error}") from error
