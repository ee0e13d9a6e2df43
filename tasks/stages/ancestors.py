"""Stage ancestors: the models that training carries on from when new text has come, before it replaces them.

What it keeps depends on what is there: the output of a run is the input of the next one. DVC pins the result, and a
restored ``dvc.lock`` restores it.
"""

import json
import shutil

from plm_core.shared import paths
from plm_core.shared.files import atomic_folder, verify_checksums
from tasks.parameters import stage_parameters
from tasks.runtime.stage import main, stage

CORPUS = paths.CORPUS / "train.parquet"
RECORD = "corpus.json"


def ancestors() -> None:
    """For each model that carries on, keep the one in its place if the training text is not the one of last time."""
    with stage("ancestors", ["models"], [CORPUS], metrics=False) as run:
        for name in stage_parameters.models():
            carries_on = stage_parameters.read(f"pretrain.{name}").get("carry_on") is not None
            record = json.dumps({"sha256": run.inputs[CORPUS.as_posix()]} if carries_on else {}) + "\n"
            folder = paths.ANCESTORS / name
            if (file := folder / RECORD).is_file() and file.read_text(encoding="utf-8") == record:
                continue
            latest = paths.MODELS / name
            if not (latest / paths.READ).is_file():  # the run before was interrupted, or did not carry on
                latest = folder / paths.ANCESTOR
            with atomic_folder(folder, checksums=False) as new:
                (new / RECORD).write_text(record, encoding="utf-8")
                if carries_on and latest.is_dir():
                    verify_checksums(latest)
                    shutil.copytree(latest, new / paths.ANCESTOR)
                    print(f"{name}: carries on from {latest}")
        run.outputs.append(paths.ANCESTORS)


if __name__ == "__main__":
    main(ancestors)
