"""Stage ancestors: the models that training carries on from when new text has come, before it replaces them, and their
tokenizers.

What it keeps depends on what is there: the output of a run is the input of the next one. DVC pins the result, and a
restored ``dvc.lock`` restores it.
"""

import json
import shutil
from pathlib import Path

from plm_core.shared import paths
from plm_core.shared.files import atomic_folder, verify_checksums
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage

CORPUS = paths.CORPUS / "train.parquet"
RECORD, NAMES = "corpus.json", "names.json"


def ancestors() -> None:
    """For each model that carries on, keep the one in its place if the training text is not the one of last time."""
    tokenizers: dict[str, Path] = {}
    with stage("ancestors", ["models"], [CORPUS], metrics=False) as run:
        for name, tokenizer in stage_parameters.models().items():
            carries_on = stage_parameters.read(f"pretrain.{name}").get("carry_on") is not None
            record = json.dumps({"sha256": run.inputs[CORPUS.as_posix()]} if carries_on else {}) + "\n"
            folder = paths.ANCESTORS / name
            ancestor = folder / paths.ANCESTOR
            if not (file := folder / RECORD).is_file() or file.read_text(encoding="utf-8") != record:
                latest = paths.MODELS / name
                if not (latest / paths.READ).is_file():  # the run before was interrupted, or did not carry on
                    latest = ancestor
                with atomic_folder(folder, checksums=False) as new:
                    (new / RECORD).write_text(record, encoding="utf-8")
                    if carries_on and latest.is_dir():
                        verify_checksums(latest)
                        shutil.copytree(latest, new / paths.ANCESTOR)
                        print(f"{name}: carries on from {latest}")
            if ancestor.is_dir():
                tokenizers.setdefault(tokenizer, ancestor)
        with atomic_folder(paths.KEPT_TOKENIZERS, checksums=False) as new:
            (new / NAMES).write_text(json.dumps(sorted(tokenizers)) + "\n", encoding="utf-8")
            for tokenizer, ancestor in tokenizers.items():
                (new / tokenizer).mkdir()
                for file in (*ancestor.glob("tokenizer*"), ancestor / paths.READ):
                    shutil.copy(file, new / tokenizer)
        run.outputs += [paths.ANCESTORS, paths.KEPT_TOKENIZERS]


if __name__ == "__main__":
    main(ancestors)
