"""The tutorial, command by command, in a copy of the project: to a served champion and back."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands():
    """The tutorial's blocks as one script; those that need a network or wait for a person are left out."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL | re.MULTILINE)
    return "\n".join(block for block in blocks if not block.startswith("# needs:"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_ends_with_a_served_champion(tmp_path):
    project = tmp_path / "project"
    files = (
        subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        .stdout.decode()
        .split("\0")
    )
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=project, check=True)
    # What a person who follows it has: the environment of `make setup`, and this project's own code in it.
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(project),
    }
    script = tmp_path / "tutorial.sh"
    script.write_text("set -euo pipefail\n" + commands())
    with (tmp_path / "output").open("w+") as output:
        done = subprocess.run(["bash", script], cwd=project, env=environment, stdout=output, stderr=output, check=False)
        output.seek(0)
        transcript = output.read()
    assert done.returncode == 0, transcript[-5000:]
    assert "version 2 promoted: bits_per_byte is significantly better" in transcript
    assert "version 1 is the champion again: users complain" in transcript
    assert '"continuation"' in transcript
