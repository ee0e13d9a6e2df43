"""A checkpoint as an MLflow pyfunc model "from code": registration logs this file, `mlflow models serve` runs it.

The request is a column ``text``; the answer has ``text``, its ``continuation`` (empty from a masked model, which
continues no text), the text's ``likelihood`` in bits a byte, and the ``quantity`` that this is: only numbers of the
same quantity may be compared, and of a ``lossy_`` one only those of models with the same tokenizer. The whole text is
scored, also where the evaluation reads excerpts.
MLflow copies this file and ``plm_core`` into the model: a model of last year is served by last year's code.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

if TYPE_CHECKING:
    from plm_core.evaluation.scores import Text


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
        from plm_core.evaluation.scores import tokenized
        from plm_core.generation import SamplingConfig, generate

        try:
            sampling = SamplingConfig(**(params or {}))
        except (TypeError, ValueError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        texts = [str(text) for text in model_input["text"]]
        read = [tokenized(text, self.loaded.tokenizer) for text in texts]
        if not all(text.ids for text in read):
            raise MlflowException.invalid_parameter_value("text: no token in it; expected text")
        silent = self.loaded.config.objective == "masked"
        return pd.DataFrame(
            {
                "text": texts,
                "continuation": ["" if silent else generate(self.loaded, text, sampling) for text in texts],
                **self._likelihoods(read),
            }
        )

    def _likelihoods(self, texts: "list[Text]") -> dict[str, list[float] | str]:
        from plm_core.evaluation.likelihood import SCORERS, named
        from plm_core.evaluation.scores import total
        from plm_core.sections.evaluation import LikelihoodConfig

        scorer = SCORERS[self.loaded.config.objective]
        config = LikelihoodConfig(stride=max(1, self.loaded.model.config.context // 2))
        scores = scorer.score(self.loaded.model, texts, config, self.device)
        quantity = named(scorer.quantity, self.loaded.tokenizer)
        return {"likelihood": [total([score]).bits_per_byte for score in scores], "quantity": quantity}


set_model(CheckpointModel())
