"""What watches a training run, one concern a file. The loop calls each by name, where it has something to do."""

from collections.abc import Mapping
from typing import Any, ClassVar


class Callback:
    """A watcher with memory. A snapshot keeps the fields named in ``saved``, as JSON."""

    saved: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """The saved fields, by name."""
        return {name: getattr(self, name) for name in self.saved}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore them."""
        for name in self.saved:
            setattr(self, name, saved[name])
