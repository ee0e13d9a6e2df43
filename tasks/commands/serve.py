"""A checkpoint as an MLflow pyfunc model "from code": registration logs this file, `mlflow models serve` runs it.

To a pretrained model the request is a column ``text``; the answer has ``text``, its ``continuation`` (empty from a
masked model, which does not continue text), the text's ``likelihood`` in bits per byte, and the ``quantity`` that it
measures: only numbers of the same quantity may be compared, and for a ``lossy_`` one only those of models with the same
tokenizer. The whole text is scored, even if the evaluation reads excerpts. A fine-tuned model answers as its task asks
(``plm_core.finetuning.task_model.LearnedTask``). MLflow copies this file and ``plm_core`` into the model: a model of
last year is served by last year's code.
"""

import logging
import os
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

TRACES = "PLM_TRACES"
"""If this variable is ``on``, MLflow keeps each request with its answer, in the store and the experiment that
``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` name. By default no text is kept."""
MAX_NEW_TOKENS = 1024
MAX_TEXTS = 64
"""The most texts in one request."""
MAX_CHARACTERS = 20_000
"""The most characters in each text; all of it is scored."""


class Unrecognized(logging.Filter):
    """MLflow ignores a misspelt parameter with only a warning; here the warning becomes the answer."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every other record pass.

        Raises:
            MlflowException: the record is such a warning; the server answers 400.
        """
        message = record.getMessage()
        if message.startswith("`params` can only be specified"):
            raise MlflowException.invalid_parameter_value("params: found some; a fine-tuned model expects none")
        if message.startswith("Unrecognized params"):
            named = message.partition(" are ignored")[0].removeprefix("Unrecognized params ")
            raise MlflowException.invalid_parameter_value(
                f"params: {named} unknown; expected max_new_tokens, temperature or seed"
            )
        return True


def require_texts(column: str, values: pd.Series) -> None:
    """Raise MlflowException if a column of a request has too many texts, or one that is too long or none."""
    texts = [text for value in values for text in ([*value] if isinstance(value, list | np.ndarray) else [value])]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise MlflowException.invalid_parameter_value(f"{column}: found {wrong[0]}; expected text")
    if len(values) > MAX_TEXTS or any(len(text) > MAX_CHARACTERS for text in texts):
        raise MlflowException.invalid_parameter_value(
            f"{column}: {len(values)} texts of up to {max(map(len, texts)):,} characters; expected at most {MAX_TEXTS} "
            f"of at most {MAX_CHARACTERS:,}"
        )


class CheckpointModel(PythonModel):
    """Answers with the checkpoint in the artifact ``checkpoint``."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the checkpoint, once per process.

        Raises:
            plm_core.config.UserError: the checkpoint is damaged.
        """
        import torch

        from plm_core import checkpoint
        from plm_core.training.device import Device

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        logging.getLogger("mlflow.models.utils").addFilter(Unrecognized())
        self.device = Device(device, torch.get_num_threads(), bfloat16=False)
        folder = Path(context.artifacts["checkpoint"])
        self.loaded = checkpoint.load(folder, device)
        self.task_model = None
        if self.loaded.config.head is not None:
            from plm_core.finetuning.task_model import TaskModel

            self.task_model = TaskModel.of(self.loaded, folder, device)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Answer with one row per row of the request; ``params``, for pretrained models, are max_new_tokens,
        temperature and seed.

        Raises:
            MlflowException: there are too many texts, one is empty or too long, or a parameter is out of its range;
                the server answers 400.
        """
        for column in model_input:
            require_texts(str(column), model_input[column])
        answer = mlflow.trace(self._answer, name="predict") if os.environ.get(TRACES) == "on" else self._answer
        return pd.DataFrame(answer(model_input.to_dict("records"), params or {}))

    def _answer(self, rows: list[dict[str, Any]], params: dict[str, Any]) -> list[dict[str, Any]]:
        if self.task_model is None:
            return self._continued([row["text"] for row in rows], params)
        try:
            return self.task_model.respond(rows)
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def _continued(self, texts: list[str], params: dict[str, Any]) -> list[dict[str, Any]]:
        from plm_core.configs.stage_configs import LikelihoodConfig
        from plm_core.evaluation.likelihood import named, scorer_of
        from plm_core.evaluation.likelihood.document_scores import sum_scores, tokenized
        from plm_core.generation import SamplingConfig, generate
        from plm_core.objectives import OBJECTIVES

        try:
            sampling = SamplingConfig(**params)
        except (TypeError, ValueError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        if sampling.max_new_tokens > MAX_NEW_TOKENS:
            raise MlflowException.invalid_parameter_value(
                f"max_new_tokens: {sampling.max_new_tokens}; expected at most {MAX_NEW_TOKENS}"
            )
        read = [tokenized(text, self.loaded.tokenizer) for text in texts]
        if not all(text.ids for text in read):
            raise MlflowException.invalid_parameter_value("text: found no tokens; expected text")
        objective = OBJECTIVES[self.loaded.config.objective]
        silent = objective.decoder is None
        config = LikelihoodConfig(stride=max(1, self.loaded.model.config.context // 2))
        scores = scorer_of(objective.likelihood)(self.loaded.model, read, config, self.device)
        quantity = named(objective.likelihood.name, self.loaded.tokenizer)
        return [
            {
                "text": text,
                "continuation": "" if silent else generate(self.loaded, text, sampling),
                "likelihood": sum_scores([score]).bits_per_byte,
                "quantity": quantity,
            }
            for text, score in zip(texts, scores, strict=True)
        ]


set_model(CheckpointModel())
