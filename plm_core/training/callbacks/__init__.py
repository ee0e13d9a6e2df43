"""Observers of a training run: reports and best weights, anomalies, meters. The loop calls each one explicitly."""

from collections.abc import Mapping
from typing import Any, ClassVar


class Callback:
    """An observer with state: a snapshot stores the fields named in ``saved``, as JSON."""

    saved: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """The saved fields, by name."""
        return {name: getattr(self, name) for name in self.saved}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore them."""
        for name in self.saved:
            setattr(self, name, saved[name])
