"""What ``test_pool.py`` has a pool do, in processes that find it by this module's name."""

import os
import time
from pathlib import Path

from plm_core.config import UserError


def square(item, folder):
    """The square of a number, and by whom; a second number is how long that takes."""
    number, seconds, log = item
    with Path(log).open("a") as file:
        file.write(f"{number} {os.getpid()}\n")
    (folder / "half").write_text("half")
    time.sleep(seconds)
    (folder / "square").write_text(str(number**2))


def square_together(item, folder):
    """The square of a number, when as many processes as a second number says have begun one."""
    number, count, log = item
    square((number, 0, log), folder)
    deadline = time.monotonic() + 1800
    while len({line.split()[1] for line in Path(log).read_text().splitlines()}) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def refuse(item, folder):
    """Refuse an item where this is not the process that asks for it."""
    asks, kind = item
    if os.getpid() == asks:
        time.sleep(1.5)
    elif kind == "user":
        raise UserError("data.txt:3: not this one")
    else:
        raise OSError(28, "No space left on device", str(folder))


def break_down(item, folder):
    raise ValueError(f"a mistake at {item}")
