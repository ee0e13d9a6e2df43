"""Stage pretrain: one model trained on the token store, from random weights or from a checkpoint.

`python -m tasks.stages.pretrain <section>`.
"""

import math
import shutil
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from plm_core import checkpoint
from plm_core.config import UserError, digest, join_names
from plm_core.configs.architectures import differing_sizes, shape
from plm_core.configs.checkpoint_description import read_description
from plm_core.objectives import build_objective
from plm_core.objectives.objective import Batch, Loss
from plm_core.shared import paths
from plm_core.shared.files import atomic_folder
from plm_core.text.cooccurrence import begin_with_frequencies, begin_with_neighbours
from plm_core.text.replay import document_keys
from plm_core.text.samplers import stream_seed
from plm_core.text.token_store import TokenStore
from plm_core.text.tokenizer_kinds import open_tokenizer
from plm_core.text.tokenizers import BOS, EOS, Tokenizer
from plm_core.text.vocabulary_extension import grow_weights
from plm_core.training.callbacks.loss_metrics import StepMetrics, Validation, best_report
from plm_core.training.callbacks.speed_monitor import bytes_per_position
from plm_core.training.device import prepare
from plm_core.training.distillation import begin_with_layers, distilled
from plm_core.training.loop import train
from plm_core.training.lora import adapt, merge
from plm_core.training.optimizer import above_blocks
from plm_core.training.ranks import gather_weights, join, leave
from plm_core.training.snapshot import Snapshots
from plm_core.training.step import Evaluate
from plm_core.training.training_config import LoopConfig
from tasks.parameters import stage_parameters
from tasks.parameters.environment_limits import pretraining_gpus
from tasks.parameters.pretrain_config import PretrainConfig, pretrain_section, require_start, require_trainable
from tasks.reporting.training_costs import CostReport
from tasks.runtime.stage import main, stage
from tasks.runtime.torchrun_launcher import keep_permanent_failure, launch, nodes_wanted, ranks_wanted
from tasks.runtime.training_monitor import follow, snapshots_folder, write_curve

SPLITS = ("train", "valid")


def pretrain(name: str) -> None:
    """Train the model of section ``pretrain.<name>`` and write its checkpoint and loss curve."""
    section = f"pretrain.{name}"
    config, filled = pretrain_section(name)
    objective = build_objective(config.objective, f"{section}.objective")
    tokenizer_name = stage_parameters.tokenizer_of(name)
    tokens = paths.TOKENS / tokenizer_name
    inputs = [tokens, paths.TOKENIZERS / tokenizer_name]
    inputs += [Path(given.checkpoint) for given in (config.start, config.teacher) if given]
    inputs += [paths.ANCESTORS / name] if config.carry_on else []
    require_start(config, (), section)
    shown = {section: filled}
    with stage(f"pretrain-{name}", [section], inputs, training=True, filled=shown, model=name) as run:
        # The machine, the data, the model.
        device = prepare(beside=len(stage_parameters.models()), deterministic=config.training.deterministic)
        ranks = join()
        if config.lora and ranks.sharding:
            raise UserError(f"{section}.lora: found a section, but the weights are sharded over GPUs; expected null")
        tokenizer = open_tokenizer(paths.TOKENIZERS / tokenizer_name)
        stores = [TokenStore(tokens / split) for split in SPLITS]
        for store in stores:
            store.require(tokenizer)
        teacher = checkpoint.load(Path(config.teacher.checkpoint)).model if config.teacher else None
        model = new_model(config, tokenizer, stores[0], section, teacher)
        night = carry_on(config, model, tokenizer, stores[0], paths.ANCESTORS / name / paths.ANCESTOR)
        loop = night.training
        if config.lora:
            adapt(model, config.lora, above_blocks(model))  # a head that the start lacks has to be learned
        model = model.to("cpu" if ranks.sharding else device.device)
        loss = (
            distilled(objective, model, teacher.to(device.device), config.teacher)
            if teacher and config.teacher
            else objective.loss
        )
        if ranks.first and night.note:
            print(night.note, flush=True)
        try:
            train_set, valid_set = (
                objective.batches(store, config.rows(model.config), loop.batch) for store in (night.text, stores[1])
            )
        except ValueError as error:
            raise UserError(f"{section}.{error}") from error
        if (packing := train_set.metrics()) and ranks.first:
            print(
                f"train: {packing['packing_rows']:,.0f} rows, {packing['packing_utilisation']:.2%} of their positions "
                f"hold a token, {packing['packing_documents_cut']:.2%} of the documents are cut",
                flush=True,
            )
        held_out = [part.to(device.device) for part in valid_set.held_out(config.valid_windows)]

        # What the loop asks for.
        def batch_at(step: int) -> Batch:
            return train_set.share(loop.order_seed, step, ranks.rank, ranks.size)

        def validate(evaluate: Evaluate) -> Validation:
            """Mean nats per prediction; a batch may continue the previous one."""
            losses: list[Loss] = []
            for part in held_out:
                losses.append(evaluate(part, losses[-1].carry if losses else None))
            nll = sum(loss.nll.double() for loss in losses)
            return Validation(float(nll / sum(loss.num_targets for loss in losses)))

        def documents(step: int) -> str:
            """Which documents the rows of a batch came from, for a message."""
            spans = [span for row in train_set.spans(loop.order_seed, step) for span in row]
            numbers = sorted({n for span in spans for n in night.text.within(span.start, span.stop)})
            return f"{len(numbers)} documents: {join_names(night.text.ids(numbers))}"

        folder = snapshots_folder(run, name, config)
        snapshots = Snapshots(folder, loop.keep_snapshots, ranks)
        training = partial(train, model, loss, batch_at, validate, loop, device, snapshots, ranks)
        costs = CostReport(run.name, folder.name, device, bytes_per_position(train_set, night.text, loop.order_seed))
        if loop.steps:
            reports = follow(training, loop.steps, run, section, documents, costs)
        else:
            with torch.no_grad():
                valid = validate(partial(objective.loss, model.eval())).loss
            reports = [StepMetrics(0, 0, 0, 0, valid, 0.0, 0.0, valid_loss=valid)]
        if config.lora:
            merge(model)
        weights = gather_weights(model.state_dict(), ranks)
        if not ranks.first:
            return

        # What is left of the run: the best weights with their description, the curve, the metrics.
        best = best_report(reports)
        description = checkpoint.CheckpointConfig(
            format=checkpoint.FORMAT,
            architecture=config.architecture,
            objective=config.objective["name"],
            model=vars(model.config),
            tokenizer_sha256=tokenizer.sha256,
            step=best.step or night.step,
            valid_nats=float(best.valid_loss or 0.0),
            published=read_description(Path(config.start.checkpoint)).published if config.start else None,
            lineage=checkpoint.Lineage(
                stores[0].digest,
                digest(stage_parameters.read(section)),
                skipped_batches(reports),
                night.ancestor,
                night.nights,
            ),
        )
        made = paths.MODELS / name
        curve = paths.CURVES / f"{name}.csv"
        if night.ancestor and not loop.steps:  # the same bytes, so the registry has this version
            with atomic_folder(made, checksums=False) as new:
                shutil.copytree(paths.ANCESTORS / name / paths.ANCESTOR, new, dirs_exist_ok=True)
        else:
            checkpoint.save(made, weights, tokenizer, description, read=night.read)
        write_curve(curve, reports)
        run.metrics |= {
            "parameters": sum(tensor.numel() for tensor in weights.values() if tensor.is_floating_point()),
            "positions": sum(r.positions for r in reports),
            "predictions": sum(r.predictions for r in reports),
            "best_step": description.step,
            **({"valid_loss": description.valid_nats} if description.predicts else {}),
            "final_train_loss": next(r.loss for r in reversed(reports) if math.isfinite(r.loss)),
        } | packing
        run.outputs += [made, curve]
    snapshots.remove()


def run(name: str) -> None:
    """Train ``pretrain.NAME`` of params.yaml in this process, or in one per visible GPU of each node."""
    rows = pretrain_section(name)[0].training.batch
    ranks = ranks_wanted(rows)
    nodes = nodes_wanted(rows, ranks)
    if ranks * nodes > 1:
        launch("tasks.stages.pretrain", [name], ranks, nodes)
    else:
        with keep_permanent_failure():
            pretrain(name)
            leave()


def skipped_batches(reports: list[StepMetrics]) -> list[list[int]]:
    """The batches that rollbacks skipped, as ``checkpoint.Lineage.passed``; rollbacks return to reported steps."""
    return [[before.step, after.passed] for before, after in pairwise(reports) if before.passed != after.passed] + (
        [[0, reports[0].passed]] if reports[0].passed else []
    )


class Night(NamedTuple):
    """What a run reads and how it trains: anew, or carrying on from an ancestor."""

    text: TokenStore
    training: LoopConfig
    ancestor: str | None = None
    """The digest of its checkpoint."""
    nights: int = 0
    """How many runs will have carried on since one began anew."""
    step: int = 0
    """The step that the ancestor's weights come from."""
    read: np.ndarray | None = None
    """The ``document_keys`` of what it and its ancestors will have read."""
    note: str = ""


def carry_on(config: PretrainConfig, model: Any, tokenizer: Tokenizer, text: TokenStore, folder: Path) -> Night:
    """Give ``model`` the weights of the ancestor in a folder, if it carries on, there is one and it fits."""
    loop = config.training
    if config.carry_on is None:
        return Night(text, loop)
    read = document_keys(text)
    if not folder.is_dir():
        return Night(text, loop, read=read, note="begins anew: there is no model to carry on from")
    theirs = checkpoint.describe(folder)
    if theirs.tokenizer_sha256 != tokenizer.sha256:
        return Night(text, loop, read=read, note=f"begins anew: {folder} was made with another tokenizer")
    their_model = shape(theirs.architecture, theirs.model, str(folder / checkpoint.CONFIG_FILE))
    if config.architecture != theirs.architecture or differing_sizes(model.config, their_model):
        return Night(text, loop, read=read, note=f"begins anew: {folder} is a model of another size")
    nights = theirs.lineage.nights if theirs.lineage else 0
    if nights >= config.carry_on.nights:
        return Night(text, loop, read=read, note=f"begins anew: {nights} in a row have carried on")
    ancestor = checkpoint.load(folder)
    model.load_state_dict(ancestor.model.state_dict())
    some, new = config.new_text(text, model.config, folder, ancestor.digest)
    slower = replace(loop.optimizer, learning_rate=loop.optimizer.learning_rate * config.carry_on.rate)
    return Night(
        some,
        replace(loop, steps=config.carry_on.steps if new else 0, optimizer=slower),
        ancestor.digest,
        nights + 1,
        ancestor.config.step,
        np.union1d(read, np.load(folder / paths.READ)),
        f"carries on from {ancestor.digest[:12]}: {new:,} new documents and {some.index.documents - new:,} old ones"
        if new
        else f"{ancestor.digest[:12]} has read all documents: it is not trained",
    )


def new_model(config: PretrainConfig, tokenizer: Tokenizer, text: TokenStore, section: str, teacher: Any = None) -> Any:
    """The model of a section before it is trained on ``text``: with random weights, or those of its ``start``, or with
    layers of its ``teacher``.

    It is on the host. A model that will be sharded stays there, because the whole may not fit on a GPU.

    Raises:
        UserError: the section describes no model, or one that its objective does not train, or see ``require_start``.
    """
    require_trainable(config, tokenizer.vocab_size, section)
    require_start(config, tokenizer.starts, section)
    torch.manual_seed(stream_seed(config.training.seed, "weights"))
    model: Any = checkpoint.build(config.architecture, config.model | {"vocab_size": tokenizer.vocab_size}, section)
    if hasattr(model, "spell"):  # it reads the characters of tokens
        model.spell([tokenizer.letters(token) for token in range(tokenizer.vocab_size)], ends=(BOS, EOS))
    if config.start:
        start = checkpoint.load(Path(config.start.checkpoint))
        model.load_state_dict(grow_weights(start.model.state_dict(), model.state_dict(), tokenizer))
        # A head with random weights should not spend its few steps on learning which tokens are frequent.
        if config.training.steps and not start.config.predicts and hasattr(model, "bias"):
            begin_with_frequencies(model.bias, text)
    elif teacher and begin_with_layers(model, teacher):
        pass  # it knows more than neighbours
    elif model.config.initial_embeddings == "neighbours":
        begin_with_neighbours(model.tokens.weight, text, model.config.initializer_range)
    return model


if __name__ == "__main__":
    main(run, gpus=pretraining_gpus)
