"""The stages that move text hold some of it, however much there is: their memory does not grow with the corpus."""

import json
import random
import time
from pathlib import Path

import pytest
from projects import Project, finish, source

MB = 1_000_000
SMALL, LARGE = 70, 200
"""Megabytes of text; both more than a stage holds at once."""
GROWTH = 80
"""Megabytes that the larger corpus may take more than the smaller: a few bytes a document, not the text, which is 130
more."""
STAGES = (["ingest", "own"], ["clean"], ["deduplicate"])


def write_text(path, megabytes):
    """Documents of random words, so that none repeats another."""
    draw = random.Random(1)
    vocabulary = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(20_000)]
    path.parent.mkdir()
    with path.open("w") as file:
        size = 0
        while size < megabytes * MB:
            text = "\n\n".join(" ".join(draw.choices(vocabulary, k=90)) for _ in range(10))
            file.write(json.dumps({"text": text}) + "\n")
            size += len(text)


def peak(process):
    """The most memory that the process ever had for itself (mapped files can be taken back from it), in megabytes."""
    most = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        most = max([most, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        time.sleep(0.01)
    finish(process)
    return most * 1024 / MB


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    peaks = {}
    for size in (SMALL, LARGE):
        project = Project(source(tmp_path / str(size)))
        # Held-out text is compared with the training text, a bounded number of words at a time that it does not reach.
        held_out = {"valid": 0.005, "test": 0.005, "salt": "plm"}
        project.change(clean={"paragraphs": {"words": {"min": 2}}}, split=held_out)
        write_text(project.root / "data/x.jsonl", size)
        for stage in STAGES:
            process = project.start(f"tasks.stages.{stage[0]}", *stage[1:])
            peaks[stage[0], size] = peak(process)
    print({key: round(most) for key, most in peaks.items()})
    for stage, *_ in STAGES:
        assert peaks[stage, LARGE] < peaks[stage, SMALL] + GROWTH, peaks
