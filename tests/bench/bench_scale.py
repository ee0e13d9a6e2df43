"""How the search for duplicates grows with the text, and with processes and nodes. `make bench-scale`.

The stage ``deduplicate``, as it is, reads text with planted copies: in one process, in two, and on two nodes of a Ray
cluster with a core each, of which one is killed once. The machine needs two cores, and five times the room of the text.
What all write must be the same, to the byte. Prints a line for each run and writes ``artifacts/bench/scale.json``.
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

from flows import placement
from flows.failures import StageError
from flows.helpers import helped
from flows.process import StageProcesses
from flows.stages import Stage
from plm_core.corpus.document import Document, write_documents
from plm_core.corpus.sources import SOURCES, open_source
from plm_core.files import sha256_path

OUT = Path("artifacts/bench/scale.json")
PROJECT = Path("artifacts/bench/scale")
STAGE = Stage("deduplicate", nodes="all")
PARAGRAPH = 100
"""Words."""
PEER, PEER_RATE = "Data-Juicer's published rate", 0.07
"""MB/s a core of its deduplication on Ray, which verifies no candidate."""


@dataclass(frozen=True)
class Run:
    """One run of the stage."""

    megabytes: int
    how: str
    seconds: float
    cores: int
    memory: float
    """GB of its largest process."""
    digest: str
    """Of all that it wrote."""

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
    (PROJECT / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")


def write_corpus(megabytes: int) -> None:
    """Documents of words of the demo's corpus, a fifth of them copies with a few words changed."""
    speeches = open_source("sotu", SOURCES["sotu"](MANIFEST))
    words = np.array([word for speech in speeches if isinstance(speech, Document) for word in speech.text.split()])

    def documents() -> Iterator[Document]:
        for number, text in enumerate(planted(words, megabytes)):
            found = text.split()
            parts = (" ".join(found[i : i + PARAGRAPH]) for i in range(0, len(found), PARAGRAPH))
            yield Document(f"{number:010}", "\n\n".join(parts), "planted")

    clean = PROJECT / "artifacts/corpus/clean.parquet"
    shutil.rmtree(clean, ignore_errors=True)
    clean.parent.mkdir(parents=True, exist_ok=True)
    write_documents(clean / "00000.parquet", documents())


def measured(megabytes: int, how: str, cores: int, **env: str) -> Run:
    """Run the stage as the flow does; one whose node is lost is tried again, as there."""
    with_env = {**env, "PLM_TRACKING": "off", "PYTHONPATH": str(PROJECT.resolve())}
    processes = StageProcesses(PROJECT)
    os.environ |= env
    memory = 0
    begun = time.perf_counter()
    for again in (True, False):
        with placement.detect().acquire(STAGE) as grant:
            env = with_env | grant.env
            try:
                with helped(processes, PROJECT, STAGE.name, grant, env, say):
                    command = ["python", "-m", "tasks.deduplicate"]
                    memory = processes.run(STAGE.name, command, say, env=env, launcher=grant.launcher).memory
                break
            except StageError as error:
                if not (again and error.transient):
                    raise
    seconds = time.perf_counter() - begun
    digest = sha256_path(PROJECT / "artifacts/corpus/splits")[:12]
    run = Run(megabytes, how, seconds, cores, memory / 1e9, digest)
    print(f"{megabytes:>6} MB  {how:<30}{seconds:>8.1f} s{run.rate:>8.2f} MB/s a core{run.memory:>6.2f} GB  {digest}")
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
        while len(list((PROJECT / "artifacts/parts/deduplicate/documents").glob("[0-9]*[0-9]"))) < done:
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
    cluster = {"PLM_CLUSTER": "ray", "PLM_NODES": "2", "PLM_CORES": "1"}
    runs: list[Run] = []
    prepare()
    for megabytes in sizes:
        write_corpus(megabytes)
        one = measured(megabytes, "one process", 1, PLM_CLUSTER="", PLM_CORES="1")
        two = measured(megabytes, "two processes", 2, PLM_CLUSTER="", PLM_CORES="2")
        with two_nodes() as kill:
            nodes = measured(megabytes, "two nodes", 2, **cluster)
            watching = kill_after(max(1, megabytes // 64), kill)
            killed = measured(megabytes, "two nodes, one is killed", 2, **cluster)
            watching.join()
        runs += [one, two, nodes, killed]
        assert len({run.digest for run in runs[-4:]}) == 1, "the runs have not written the same"
    slope = float(np.polyfit(np.log(sizes), np.log([run.seconds for run in runs[1::4]]), 1)[0]) if sizes[1:] else 1.0
    print(f"time grows with the text to the power of {slope:.2f}")
    _, two, nodes, killed = runs[-4:]
    rows = [
        row("two nodes, two processes on one", "MB/s a core", nodes.rate, two.rate, "the same cores, one machine"),
        row("deduplicate", "MB/s a core", nodes.rate, PEER_RATE, PEER),
        row("one of two nodes killed", "seconds", killed.seconds, nodes.seconds, "no node killed"),
    ]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    found = {"rows": rows, "runs": [asdict(run) for run in runs], "growth": slope}
    OUT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def row(work: str, unit: str, ours: float, peer: float, peer_name: str) -> dict[str, Any]:
    """A line of the file, printed too."""
    print(f"{work}: {ours:.2f} {unit}, {peer_name} {peer:.2f}, ratio {ours / peer:.2f}", flush=True)
    return {"work": work, "unit": unit, "ours": ours, "peer": peer, "peer_name": peer_name, "ratio": ours / peer}


if __name__ == "__main__":
    main()
