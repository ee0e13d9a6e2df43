"""The report's section on what models answer without fine-tuning. All of it comes from the metrics files of the stage
fewshot and from the parameters. Used by the stage report.
"""

import json
from typing import Any

from plm_core.benchmarks.prompts import FewshotConfig, prompt_of
from plm_core.benchmarks.task import read_task
from plm_core.shared import paths
from tasks.settings import params


def unfinetuned() -> dict[str, Any]:
    """The section's figures; those of a task by model and number of shots."""
    config = params.section("fewshot", FewshotConfig)
    tasks = config.asked(params.names("finetune.tasks"))
    if not (config.models and tasks and config.shots):
        return {"asked": False, "without": [], "tasks": []}
    files = {model: paths.METRICS / f"fewshot-{model}.json" for model in config.models}
    found = {model: json.loads(file.read_text("utf-8")) for model, file in files.items() if file.is_file()}
    told = []
    for name in tasks if found else []:
        task = read_task(paths.EXAMPLES / name)
        figures = {
            (model, shots): {key.removeprefix(begin): value for key, value in each.items() if key.startswith(begin)}
            for model, each in found.items()
            for shots in config.shots
            for begin in [f"{name}/{shots}/"]
        }
        prompt = prompt_of(task, config.prompts)
        told.append({"name": name, "score": task.score, "prompt": prompt, "found": figures})
    return {"asked": True, "config": config, "without": [m for m in files if m not in found], "tasks": told}
