"""The peer of bench_train and bench_finetune: models of transformers, trained by its Trainer one turn at a time.

The Trainer is as it comes (its default optimizer, its own loop) but for what would make it learn something else: it is
given the same batches, weights and learning rates, and nothing is logged, saved or evaluated.
"""

import math
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from plm_core.interchange import FAMILIES
from plm_core.objectives.causal import CausalBatch
from plm_core.objectives.masked import MaskedBatch
from plm_core.objectives.permutation import PermutationBatch
from plm_core.objectives.span_corruption import CorruptedBatch
from plm_core.training.loop import LoopConfig

NAME = f"transformers {transformers.__version__} Trainer"


def gpt_arguments(batch: CausalBatch) -> dict[str, Any]:
    """A causal model's: ``shift_labels`` are targets that are shifted already, so that all of them count."""
    return {"input_ids": batch.inputs, "labels": batch.targets, "shift_labels": batch.targets, "use_cache": False}


def modernbert_arguments(batch: MaskedBatch) -> dict[str, Any]:
    """ModernBertForMaskedLM's: a label at every position, most of them ignored."""
    labelled = batch.targets != -100
    labels = torch.full_like(batch.inputs, -100)
    labels[labelled.nonzero()[:, 0], batch.positions[labelled]] = batch.targets[labelled]
    return {"input_ids": batch.inputs, "attention_mask": batch.attention_mask.long(), "labels": labels}


def bert_arguments(batch: MaskedBatch) -> dict[str, Any]:
    """BertForPreTraining's: segments and whether the second one follows, too."""
    more = {"token_type_ids": batch.segments, "next_sentence_label": batch.following}
    return modernbert_arguments(batch) | more


def xlnet_arguments(batch: PermutationBatch) -> dict[str, Any]:
    """XLNetLMHeadModel's: who may not see whom, and which positions the query stream is for."""
    hides = batch.order[:, None, :] >= batch.order[:, :, None]
    given = torch.ones_like(batch.order, dtype=torch.bool).scatter(1, batch.queries, False)
    hides &= ~(given[:, :, None] & (batch.order[:, None, :] <= batch.order[:, :, None]))
    return {
        "input_ids": batch.inputs,
        "token_type_ids": batch.segments,
        "perm_mask": hides.float(),
        "target_mapping": F.one_hot(batch.queries, batch.inputs.shape[1]).float(),
        "labels": batch.targets,
        "use_mems": False,
    }


def t5_arguments(batch: CorruptedBatch) -> dict[str, Any]:
    """T5ForConditionalGeneration's, which shifts the labels itself."""
    return {"input_ids": batch.inputs, "labels": batch.targets}


PEERS: dict[str, tuple[Any, Any, Callable[[Any], dict[str, Any]]]] = {
    "gpt": (transformers.GPT2Config, transformers.GPT2LMHeadModel, gpt_arguments),
    "bert": (transformers.BertConfig, transformers.BertForPreTraining, bert_arguments),
    "xlnet": (transformers.XLNetConfig, transformers.XLNetLMHeadModel, xlnet_arguments),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, gpt_arguments),
    "modernbert": (transformers.ModernBertConfig, transformers.ModernBertForMaskedLM, modernbert_arguments),
    "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration, t5_arguments),
}


def same_model(paper: str, ours: Any) -> Any:
    """The peer's model with our weights, without dropout, and with the attention that transformers chooses itself."""
    return same_weights(paper, ours, PEERS[paper][1])


def same_weights(paper: str, ours: Any, kind: Any) -> Any:
    """One of the peer's models with our weights; the head of a task is none of them."""
    family = FAMILIES[paper]
    theirs = kind(PEERS[paper][0](**family.their_config(vars(ours.config))))
    weights = family.to_theirs(ours.state_dict(), vars(ours.config))
    lacking, unknown = theirs.load_state_dict(weights, strict=False)
    heads = ("classifier.", "cls.")
    assert not [name for name in lacking if name not in family.tied and not name.startswith(heads)], lacking
    assert not [name for name in unknown if not name.startswith(heads)], unknown
    theirs.tie_weights()
    assert all(module.p == 0.0 for module in theirs.modules() if isinstance(module, torch.nn.Dropout))
    return theirs


class Steps(Dataset):
    """The batches of a training, one a step, as arguments of the peer's model."""

    def __init__(self, batch_at: Callable[[int], Any], arguments: Callable[[Any], dict[str, Any]], steps: int) -> None:
        self.batch_at, self.arguments, self.steps = batch_at, arguments, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> dict[str, Any]:
        return self.arguments(self.batch_at(step))


class SameTrainer(transformers.Trainer):
    """The Trainer, given whole batches and our learning rates."""

    loop: LoopConfig
    losses: list[torch.Tensor]

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        self.losses.append(loss.detach())
        return loss

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Linear warm-up, then half a cosine down to the final fraction."""
        config = self.loop.optimizer

        def fraction(step: int) -> float:
            if step < config.warmup_steps:
                return (step + 1) / config.warmup_steps
            progress = (step - config.warmup_steps) / max(1, num_training_steps - 1 - config.warmup_steps)
            cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
            return config.final_fraction + (1 - config.final_fraction) * cosine

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, fraction)
        return self.lr_scheduler


class GivenBatches(SameTrainer):
    """Which draws no batches of its own."""

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=None)


class Turns(transformers.TrainerCallback):
    """Calls ``begin`` before each turn of so many steps and ``end`` with the model behind it."""

    def __init__(self, steps: int, begin: Callable[[], None], end: Callable[[Any], None]) -> None:
        self.steps, self.begin, self.end = steps, begin, end

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self.steps == 0:
            self.end(model)
            if state.global_step < state.max_steps:
                self.begin()


def train_peer(
    paper: str,
    model: Any,
    batch_at: Callable[[int], Any],
    loop: LoopConfig,
    bfloat16: bool,
    begin: Callable[[], None],
    end: Callable[[Any, list[torch.Tensor]], None],
) -> None:
    """One training by the Trainer: ``begin()`` before each turn, ``end(model, losses of its steps)`` behind it."""
    steps = Steps(batch_at, PEERS[paper][2], loop.steps)
    train_by(GivenBatches, model, {"train_dataset": steps}, loop, bfloat16, begin, end)


def train_by(
    kind: type[SameTrainer],
    model: Any,
    data: dict[str, Any],
    loop: LoopConfig,
    bfloat16: bool,
    begin: Callable[[], None],
    end: Callable[[Any, list[torch.Tensor]], None],
) -> None:
    """``train_peer`` with a Trainer that gets its data as ``data`` says."""

    def behind(model: Any) -> None:
        turn, trainer.losses = trainer.losses, []
        end(model, turn)

    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=loop.steps,
            per_device_train_batch_size=loop.batch,
            learning_rate=loop.optimizer.learning_rate,
            weight_decay=loop.optimizer.weight_decay,
            adam_beta1=loop.optimizer.beta_1,
            adam_beta2=loop.optimizer.beta_2,
            adam_epsilon=loop.optimizer.epsilon,
            max_grad_norm=loop.optimizer.clip_norm,
            bf16=bfloat16,
            torch_compile=cuda,
            use_cpu=not cuda,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = kind(model, arguments, callbacks=[Turns(loop.report_every, begin, behind)], **data)
        trainer.loop, trainer.losses = loop, []
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


@torch.no_grad()
def peer_valid(paper: str, model: Any, batches: list[Any]) -> float:
    """The mean nats of the peer's model on batches."""
    device = next(model.parameters()).device
    model.eval()
    nats = sum(
        float(model(**{name: x.to(device) if torch.is_tensor(x) else x for name, x in PEERS[paper][2](b).items()}).loss)
        * int(b.num_targets)
        for b in batches
    )
    model.train()
    return nats / sum(int(b.num_targets) for b in batches)
