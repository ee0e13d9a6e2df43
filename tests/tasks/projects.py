"""A copy of the project with small sizes, in which stages run as the real processes that they are."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from flows.processes import supervisor
from flows.processes.forkserver import ForkServer
from flows.processes.process import Running
from flows.run.graph import Graph

ROOT = Path(__file__).parents[2]
INSTALLED = Path(__file__).with_name("installed")
"""Makes what stages can import what users have."""
SMALL = {
    "models": {"gpt": "own"},
    "sources": {"own": {"reader": "folder", "input": "data"}},
    "clean": {"paragraphs": {"words": {"min": 2, "max": 99}}},
    "split": {"valid": 0.2, "test": 0.3, "salt": "plm"},
    "tokenizers": {"own": {"kind": "bpe", "vocab_size": 307}},
    "evaluate": {
        "stride": 13,
        "excerpt": 17,
        "orders": 2,
        "prompts": ["Ba", ""],
        "sampling": {"max_new_tokens": 7, "seed": 5},
        "cloze": ["Ba ___ so."],
    },
    "fewshot": {
        "models": ["gpt"],
        "tasks": ["sotu-era", "next"],
        "shots": [0, 2],
        "examples": 23,
        "words": 2,
        "contaminated": 0.5,
        "seed": 3,
        "prompts": {
            "sotu-era": {
                "template": "{a}:",
                "options": {"before-1865": "ba", "1865-1944": "bo", "from-1945": "ku"},
            },
            "next": {"template": "{a}, {b}:", "options": {"other": "so", "next": "ba"}},
        },
    },
}
TRAINING = {
    "seed": 3,
    "steps": 26,
    "batch": 8,
    "report_every": 2,
    "valid_every": 6,
    "snapshot_every": 4,
    "optimizer": {"learning_rate": 0.005, "warmup_steps": 5},
}
FINETUNING = {
    "epochs": 1,
    "validations": 2,
    "batch": 8,
    "report_every": 2,
    "warmup": 0.4,
    "optimizer": {"learning_rate": 0.005},
}


@dataclass(frozen=True)
class Project:
    """A copy of the project: parameters to change, stages to run, files to compare."""

    root: Path

    def copied(self, target):
        """A copy of this project, with the times of its files."""
        shutil.copytree(self.root, target, symlinks=True)
        return Project(target)

    def change(self, **values):
        """Set parameters by their dotted names, written with ``__``; ``...`` takes one away."""
        path = self.root / "params.yaml"
        params = yaml.safe_load(path.read_text())
        for name, value in values.items():
            *above, last = name.split("__")
            section = params
            for key in above:
                section = section[key]
            if value is ...:
                del section[last]
            else:
                section[last] = value
        path.write_text(yaml.safe_dump(params, sort_keys=False))

    def start(self, *command, **env):
        """Start ``python -m <command>`` here, without MLflow unless ``env`` says otherwise."""
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env=self._environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command, code=0, **env):
        """Run ``python -m <command>`` to its end; returns its stdout and stderr.

        A stage is forked, as the flow has it: that saves the seconds of its imports. One that is tracked is not, for
        its supervisor would end the publisher that it leaves.
        """
        if not command[0].startswith("tasks.") or "PLM_TRACKING" in env:
            return finish(self.start(*command, **env), code)
        running = Running()
        with running.lines, tempfile.TemporaryFile("w+") as err:
            request = {"module": command, "folder": str(self.root), "env": self._environment(env)}
            descriptors = (running.stdin, running.stdout, err.fileno())
            begun = forks().start(request | {"umask": 0o022, "grace_s": 60}, descriptors)
            for descriptor in descriptors[:2]:
                os.close(descriptor)
            assert begun, "the fork server has died"
            lines, _, ended = running.lines.read().rpartition(supervisor.ENDED)
            running.end()
            err.seek(0)
            return checked(int(ended.split()[0]), lines, err.read(), code)

    def reproduce(self):
        """Run every stage that is not up to date as ``dvc repro`` would, but forked; returns what they say."""
        output = []
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.root)
            patch.setenv("DVC_SITE_CACHE_DIR", str(self.root / ".dvc-site"))
            graph = Graph(self.root)
            for stage in graph.stages:
                if graph.reasons(stage.name):
                    with graph.reproducing(stage.name) as command:
                        for line in command.lines:
                            output += self.run(*line[-1].split()[2:], **command.env)
        return "".join(output)

    def _environment(self, env):
        settings = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(INSTALLED), os.environ.get("PYTHONPATH")])),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PLM_TRACKING": "off",
            "PLM_THREADS": "1",
            "HF_HOME": str(self.root / ".hf"),
            "DVC_SITE_CACHE_DIR": str(self.root / ".dvc-site"),
        }
        return os.environ | settings | env

    def refused(self, *command, **env):
        """Run a stage that must be refused: status 2, one error line, no file changed. Returns the line."""
        before = self.files()
        _, err = self.run(*command, code=2, **env)
        assert self.files() == before
        lines = [line for line in err.splitlines() if line]
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
        return lines[0]

    def files(self, below="artifacts"):
        """The bytes of every file below a folder, except those that belong to no stage: snapshots, parts, journals,
        meters, caches."""
        paths = sorted(path for path in (self.root / below).rglob("*") if path.is_file())
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in paths
            if not {"snapshots", "parts", "mlflow", "journals", "meters", "compiled"} & set(path.parts)
        }

    def metrics(self, name):
        return json.loads((self.root / f"artifacts/metrics/{name}.json").read_text())

    def snapshot(self, process):
        """Wait until a running training run has saved its state; fails when it ends without."""
        while not any((self.root / "artifacts/snapshots").glob("*/step-*/SHA256SUMS")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)


def finish(process, code=0):
    """The output of a process that must end with ``code``."""
    try:
        out, err = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return checked(process.returncode, out, err, code)


def checked(status, out, err, code):
    """The output of a process that had to end with ``code``."""
    assert status == code, f"status {status}\n{out}\n{err}"
    return out, err


@cache
def forks():
    """The process that forks stages for this one's tests, without the packages that users do not have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(INSTALLED), prepend=os.pathsep)
        return ForkServer()


def source(root):
    """The project without anything generated: code, graph, small parameters, and text in three forms."""
    root.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("plm_core", "tasks"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignore)
    for file in ("dvc.yaml", ".dvcignore"):
        shutil.copy2(ROOT / file, root / file)
    params = yaml.safe_load((ROOT / "params.yaml").read_text()) | SMALL
    params["pretrain"]["gpt"] |= {
        "model": {"context": 29, "layers": 2, "heads": 2, "width": 16, "dropout": 0.1},
        "training": TRAINING,
        "valid_windows": 13,
    }
    params["finetune"] |= {"seeds": [1, 2], "train_examples": 99, "heldout_examples": 37, "training": FINETUNING}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    return root


def write_data(folder, documents):
    """Documents with a year as JSON lines, in two files of a nested folder."""
    (folder / "more").mkdir(parents=True)
    for path, part in (("a.jsonl", documents[:20]), ("more/b.jsonl", documents[20:])):
        lines = (json.dumps({"key": d.id, "text": d.text, "year": d.metadata["year"]}) for d in part)
        (folder / path).write_text("\n".join(lines) + "\n")
