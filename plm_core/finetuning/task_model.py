"""A fine-tuned model as a checkpoint: it answers new examples of its task, without the task's files."""

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import torch

from plm_core import checkpoint
from plm_core.benchmarks.example_readers import Example
from plm_core.benchmarks.task import KINDS, GlueTask
from plm_core.config import UserError, from_dict, section
from plm_core.finetuning.classifier import Classifier, new_features, predict
from plm_core.finetuning.featurize import encoded
from plm_core.finetuning.finetune_config import FeaturesConfig, TextRecipe
from plm_core.finetuning.input_formats import input_format_of
from plm_core.finetuning.task_heads import Predicted, example_answers
from plm_core.finetuning.text_writer import TextModel

SERVED_BATCH = 32
"""Examples that a served model reads at a time."""


@section
class LearnedTask:
    """What a fine-tuned checkpoint says about its task: ``head`` in its ``config.json``."""

    task: GlueTask
    pair: bool
    """Whether its examples have a second text."""
    threshold: float = 0.0
    """``TaskHead.threshold``; 0 if every question has an answer."""
    texts: TextRecipe | None = None
    """How its answers are written, if they are texts."""
    most_tokens: int | None = None
    """The most tokens of such a text."""
    features: FeaturesConfig | None = None
    """How the pretrained model is used as features, if it is not fine-tuned."""
    pooling: Literal["mean"] | None = None
    """How a model for search makes one vector of its states."""

    def request(self) -> dict[str, str]:
        """The columns of a request, and the type of each: ``text`` or ``texts``."""
        return {
            column: "texts" if field == "choices" else "text"
            for column, field in KINDS[self.task.kind].request.items()
            if self.pair or field != "b"
        }

    def response(self) -> dict[str, str]:
        """The columns of an answer, and the type of each: those of a request, ``number`` and ``numbers``."""
        answer: str = KINDS[self.task.kind].answer_type
        return {"answer": answer} | ({} if answer.startswith("number") else {"probability": "number"})


class TaskModel:
    """A fine-tuned model with its task."""

    def __init__(
        self,
        model: Classifier | TextModel,
        learned: LearnedTask,
        pretrained: checkpoint.Loaded,
        batch: int,
        device: torch.device,
    ) -> None:
        self.model = model
        self.learned = learned
        self._pretrained = pretrained
        self._batch = batch
        self._device = device

    @classmethod
    def of(cls, loaded: checkpoint.Loaded, folder: Path, device: torch.device) -> "TaskModel":
        """The model of a checkpoint, which is in this folder.

        Raises:
            UserError: the checkpoint was not fine-tuned, or its head does not fit its description.
        """
        place = f"{folder / checkpoint.CONFIG_FILE}: head"
        if loaded.config.head is None:
            raise UserError(f"{place}: null; expected a fine-tuned checkpoint")
        learned = from_dict(LearnedTask, loaded.config.head, place)
        kind = learned.task.kind
        input_format = input_format_of(loaded.config.objective, loaded.config.model)
        model: Classifier | TextModel
        try:
            if learned.texts and learned.most_tokens and input_format.writer:
                writer = resolve_name(input_format.writer)
                vocab_size = loaded.tokenizer.vocab_size
                model = TextModel(loaded.model, writer, kind, learned.texts, learned.most_tokens, vocab_size)
            else:
                features = new_features(loaded, learned.features) if learned.features else None
                model = Classifier(loaded.model, input_format, kind, len(learned.task.labels), 0.0, features=features)
            own = {name for name in model.state_dict() if not name.startswith("backbone.")}
            if wrong := own ^ set(loaded.extra):
                raise RuntimeError(", ".join(sorted(wrong)))
            model.load_state_dict(loaded.extra, strict=False)
        except (KeyError, RuntimeError) as error:
            raise UserError(f"{folder / checkpoint.WEIGHTS_FILE}: does not fit {place} ({error})") from error
        return cls(model.to(device).eval(), learned, loaded, SERVED_BATCH, device)

    def predict(self, examples: Sequence[Example]) -> Predicted:
        """The answers to examples, whatever these say is right."""
        loaded = self._pretrained
        task = self.learned.task
        input_format = input_format_of(loaded.config.objective, loaded.config.model)
        rows = encoded(examples, task, input_format, loaded.tokenizer, loaded.model.config.context)
        predicted = predict(self.model, rows.encoded, self._batch, self._device)
        if self.model.kind.reads == "mean":  # ranks exist only among the passages of a test set
            return Predicted([vectors[0].tolist() for vectors in predicted.answers], predicted.confidences, 0.0)
        return example_answers(task, rows, predicted, loaded.tokenizer, self.learned.threshold)

    def respond(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answer to each row of a request, in the columns of ``LearnedTask``.

        Raises:
            ValueError: a multiple choice has another number of choices than the task.
        """
        if not requests:
            return []
        task = self.learned.task
        kind = KINDS[task.kind]
        answers, confidences, _ = self.predict([kind.unanswered(task, request) for request in requests])
        columns = self.learned.response()
        rows = zip((kind.served(task, answer) for answer in answers), confidences, strict=True)
        return [dict(zip(columns, row, strict=False)) for row in rows]


def on_top(model: Classifier | TextModel) -> dict[str, torch.Tensor]:
    """The weights of all but the pretrained model, by name."""
    own = model.state_dict().items()
    return {name: tensor.cpu() for name, tensor in own if not name.startswith("backbone.")}


def learned_task(model: Classifier | TextModel, task: GlueTask, pair: bool, threshold: float) -> LearnedTask:
    """What the checkpoint of a fine-tuned model says about its task."""
    texts = model.recipe if isinstance(model, TextModel) else None
    features = model.features.config if isinstance(model, Classifier) and model.features else None
    pooled = model.kind.reads == "mean" and features is None
    most = model.most if isinstance(model, TextModel) else None
    return LearnedTask(task, pair, threshold, texts, most, features, "mean" if pooled else None)
