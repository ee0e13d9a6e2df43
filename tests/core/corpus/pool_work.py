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
