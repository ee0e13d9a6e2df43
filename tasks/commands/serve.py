"""A checkpoint as an MLflow pyfunc model "from code": registration logs this file, `mlflow models serve` runs it.

The request is a column ``text``; the answer has ``text``, its ``continuation`` (empty from a masked model, which does
not continue text), the text's ``likelihood`` in bits per byte, and the ``quantity`` that it measures: only numbers of
the same quantity may be compared, and for a ``lossy_`` one only those of models with the same tokenizer. The whole text
is scored, even if the evaluation reads excerpts. MLflow copies this file and ``plm_core`` into the model: a model of
last year is served by last year's code.
"""

import logging
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

MAX_NEW_TOKENS = 1024
MAX_TEXTS = 64
"""The most texts in one request."""
MAX_CHARACTERS = 20_000
"""The most characters in each text; all of it is scored."""


class Unrecognized(logging.Filter):
    """MLflow ignores a misspelt parameter with only this warning; here the warning becomes the answer."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every other record pass.

        Raises:
            MlflowException: the record is that warning; the server answers 400.
        """
        if (message := record.getMessage()).startswith("Unrecognized params"):
            named = message.partition(" are ignored")[0].removeprefix("Unrecognized params ")
            raise MlflowException.invalid_parameter_value(
                f"params: {named} unknown; expected max_new_tokens, temperature or seed"
            )
        return True


class CheckpointModel(PythonModel):
    """Continues and scores texts with the checkpoint in the artifact ``checkpoint``."""

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
        self.loaded = checkpoint.load(Path(context.artifacts["checkpoint"]), self.device.device)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Answer with one row per text; ``params`` are max_new_tokens, temperature and seed.

        Raises:
            MlflowException: there are too many texts, one is empty or too long, or a parameter is out of its range;
                the server answers 400.
        """
        from plm_core.configs.stage_configs import LikelihoodConfig
        from plm_core.evaluation.likelihood import named, scorer_of
        from plm_core.evaluation.likelihood.document_scores import sum_scores, tokenized
        from plm_core.generation import SamplingConfig, generate
        from plm_core.objectives import OBJECTIVES

        try:
            sampling = SamplingConfig(**(params or {}))
        except (TypeError, ValueError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        if sampling.max_new_tokens > MAX_NEW_TOKENS:
            raise MlflowException.invalid_parameter_value(
                f"max_new_tokens: {sampling.max_new_tokens}; expected at most {MAX_NEW_TOKENS}"
            )
        texts = list(model_input["text"])
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise MlflowException.invalid_parameter_value(f"text: found {wrong[0]}; expected text")
        if len(texts) > MAX_TEXTS or any(len(text) > MAX_CHARACTERS for text in texts):
            raise MlflowException.invalid_parameter_value(
                f"text: {len(texts)} texts of up to {max(map(len, texts)):,} characters; expected at most {MAX_TEXTS} "
                f"of at most {MAX_CHARACTERS:,}"
            )
        read = [tokenized(text, self.loaded.tokenizer) for text in texts]
        if not all(text.ids for text in read):
            raise MlflowException.invalid_parameter_value("text: found no tokens; expected text")
        objective = OBJECTIVES[self.loaded.config.objective]
        silent = objective.decoder is None
        config = LikelihoodConfig(stride=max(1, self.loaded.model.config.context // 2))
        scores = scorer_of(objective.likelihood)(self.loaded.model, read, config, self.device)
        return pd.DataFrame(
            {
                "text": texts,
                "continuation": ["" if silent else generate(self.loaded, text, sampling) for text in texts],
                "likelihood": [sum_scores([score]).bits_per_byte for score in scores],
                "quantity": named(objective.likelihood.name, self.loaded.tokenizer),
            }
        )


set_model(CheckpointModel())
