"""A folder is whole or absent, whatever happens to its writer; a changed bit never passes unnoticed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plm_core.config import UserError
from plm_core.shared import files
from plm_core.shared.files import (
    CHECKSUMS,
    atomic_file,
    atomic_folder,
    atomic_text,
    sha256_path,
    verify_checksums,
    write_checksums,
)


def fill(folder: Path, content: str) -> None:
    (folder / "sub").mkdir()
    (folder / "a.txt").write_text(content)
    (folder / "sub/b.bin").write_text(content * 99)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_atomic_folder_replaces_the_old_one(tmp_path):
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "x") as folder:
            fill(folder, content)
    assert (tmp_path / "x/a.txt").read_text() == "new"
    verify_checksums(tmp_path / "x")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_folder_keeps_the_old_one_on_a_crash(tmp_path, error):
    with atomic_folder(tmp_path / "x") as folder:
        fill(folder, "old")
    before = contents(tmp_path / "x")

    def crash():
        with atomic_folder(tmp_path / "x") as folder:
            (folder / "a.txt").write_text("half")
            raise error

    with pytest.raises(error):
        crash()
    assert contents(tmp_path / "x") == before
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_atomic_folder_syncs_contents_before_the_rename(tmp_path, monkeypatch):
    flushed = []

    def fsync(descriptor, really=os.fsync):
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_folder(tmp_path / "x") as folder:
        fill(folder, "new")
    written = [f"{folder}/{name}" for name in ("a.txt", "sub", "sub/b.bin", CHECKSUMS)]
    assert sorted(flushed[:-2]) == sorted(written)
    assert flushed[-2:] == [str(folder), str(tmp_path)]
    flushed.clear()
    with atomic_file(tmp_path / "y") as file:
        file.write_text("new")
    assert flushed == [str(file)]


WRITER = """
import sys
from pathlib import Path
from plm_core.shared.files import atomic_folder
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    with atomic_folder(Path(sys.argv[1])) as folder:
        for name in ("a", "b", "c"):
            (folder / name).write_text(f"{turn}," * 3700)
"""


def test_atomic_folder_survives_sigkill_at_any_moment(tmp_path):
    draw = random.Random(13)
    target = tmp_path / "x"
    for _ in range(13):
        with subprocess.Popen([sys.executable, "-c", WRITER, target], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(draw.random() * 0.05)
            process.send_signal(signal.SIGKILL)
        if target.exists():
            verify_checksums(target)
            assert len({(target / name).read_text() for name in ("a", "b", "c")}) == 1
    with atomic_folder(target) as folder:
        (folder / "a").write_text("last")
    verify_checksums(target)


def test_atomic_folder_clears_leftovers_of_kills(tmp_path):
    """In a container every process may have the same pid; a kill can leave each of the two helper folders."""
    with atomic_folder(tmp_path / "x") as folder:
        fill(folder, "old")
    for pid in (os.getpid(), 1):
        for suffix in ("tmp", "old"):
            leftover = tmp_path / f".x.{pid}.{suffix}"
            leftover.mkdir()
            (leftover / "a.txt").write_text("leftover")
    (tmp_path / ".x.y.1.tmp").write_text("is being written as x.y")
    with atomic_folder(tmp_path / "x") as folder:
        fill(folder, "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".x.y.1.tmp", "x"]
    assert (tmp_path / "x/a.txt").read_text() == "new"
    verify_checksums(tmp_path / "x")


def test_an_atomic_text_is_the_old_or_the_new_one(tmp_path):
    path = tmp_path / "sub/x.json"
    atomic_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        atomic_text(path, "half \ud800")
    assert path.read_text() == "old"
    atomic_text(path, "new")
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]
    assert path.read_text() == "new"


def test_checksum_list_is_readable_by_sha256sum(tmp_path):
    fill(tmp_path, "text")
    write_checksums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUMS], cwd=tmp_path, check=True, capture_output=True)


def test_checksums_name_a_missing_file_or_list(tmp_path):
    with atomic_folder(tmp_path / "x") as folder:
        fill(folder, "text")
    (tmp_path / "x/sub/b.bin").unlink()
    with pytest.raises(UserError, match=r"x/sub/b\.bin: missing"):
        verify_checksums(tmp_path / "x")
    with pytest.raises(UserError, match=r"y/SHA256SUMS: missing"):
        verify_checksums(tmp_path / "y")


@pytest.mark.parametrize("keep", [0, 1, 70, -1])
def test_checksum_list_that_is_truncated_is_damage(tmp_path, keep):
    with atomic_folder(tmp_path / "x") as folder:
        fill(folder, "text")
    listing = tmp_path / "x" / CHECKSUMS
    whole = listing.read_text()
    first_line = whole.index("\n") + 1
    listing.write_text({0: "", 1: whole[:first_line], 70: whole[:70], -1: "\n" + whole}[keep])
    with pytest.raises(UserError, match=r"x/"):
        verify_checksums(tmp_path / "x")


def test_digest_covers_names_and_bytes_but_not_bytecode(tmp_path):
    fill(tmp_path, "text")
    before = sha256_path(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/m.pyc").write_text("bytecode")
    assert sha256_path(tmp_path) == before
    (tmp_path / "a.txt").rename(tmp_path / "c.txt")
    renamed = sha256_path(tmp_path)
    assert renamed != before
    flip(tmp_path / "c.txt", 5)
    assert sha256_path(tmp_path) not in (before, renamed)
    assert sha256_path(tmp_path / "c.txt") != sha256_path(tmp_path / "sub/b.bin")


def test_cached_read_notices_every_change(tmp_path, monkeypatch):
    """Two changes within a tick of the clock look alike, so that nothing of a file that was just written is kept."""
    file, read = tmp_path / "a", []
    monkeypatch.setattr(files, "sha256", lambda path: read.append(path.read_bytes()) or len(read))
    file.write_bytes(b"one")
    assert [files.sha256_file(file), files.sha256_file(file)] == [1, 2]
    now = time.time()
    monkeypatch.setattr(files.time, "time", lambda: now + files.SETTLED_S + 1)
    assert [files.sha256_file(file), files.sha256_file(file)] == [3, 3]
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files.sha256_file(file) == 4
    assert read[-2:] == [b"one", b"two"]
