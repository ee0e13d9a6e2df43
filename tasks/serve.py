"""A checkpoint as an MLflow pyfunc model "from code": registration logs this file, `mlflow models serve` runs it.

The request is a column ``text``; the answer has ``text``, its ``continuation`` and the text's ``bits_per_byte``.
MLflow copies this file and ``plm_core`` into the model: a model of last year is served by last year's code.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class CheckpointModel(PythonModel):
    """Continues and scores texts with the checkpoint in the artifact ``checkpoint``."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the checkpoint, once a process.

        Raises:
            plm_core.config.BadInput: the checkpoint is damaged.
        """
        import torch

        from plm_core import checkpoint
        from plm_core.training.device import Device

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.device = Device(device, torch.get_num_threads(), bfloat16=False)
        self.loaded = checkpoint.load(Path(context.artifacts["checkpoint"]), self.device.device)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Answer one row a text; ``params`` are max_new_tokens, temperature and seed.

        Raises:
            MlflowException: a text is empty, or a parameter is out of its range; the server answers 400.
        """
        from plm_core.generation import SamplingConfig, generate

        try:
            sampling = SamplingConfig(**(params or {}))
        except (TypeError, ValueError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        texts = [str(text) for text in model_input["text"]]
        if "" in texts:
            raise MlflowException.invalid_parameter_value("text: empty; expected at least one character")
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        return pd.DataFrame(
            {
                "text": texts,
                "continuation": [generate(model, tokenizer, text, sampling) for text in texts],
                "bits_per_byte": self._bits_per_byte(texts),
            }
        )

    def _bits_per_byte(self, texts: list[str]) -> list[float]:
        from plm_core.evaluation.likelihood import score, total

        documents = [(self.loaded.tokenizer.encode(text), len(text.encode())) for text in texts]
        stride = max(1, self.loaded.model.config.context // 2)
        scores = score(self.loaded.model, documents, stride, self.device)
        return [total([document]).bits_per_byte for document in scores]


set_model(CheckpointModel())
