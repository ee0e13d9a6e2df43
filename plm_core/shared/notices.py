"""Section ``notify``: who is notified of which events. Read by the flow, and checked by ``tasks/check.py``."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

Event = Literal["failure", "refusal", "promotion", "rollback", "missed", "disk", "budget"]
EVENTS: tuple[Event, ...] = get_args(Event)


@dataclass(frozen=True)
class NotifyConfig:
    """Who is notified, and of what. The addresses are secrets: this section only names where they are."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"strict": True, "extra": "forbid"}
    """As ``plm_core.config.section`` sets it, which this package does not import."""

    urls_from: str = "PLM_NOTIFY_URLS"
    """The environment variable that holds the addresses, as apprise URLs separated by spaces. If it is not set, nobody
    is notified."""
    events: tuple[Event, ...] = EVENTS
    """The events: a run that failed, a model that the gate refused, one that it promoted, a rollback, a scheduled run
    that did not happen, a disk that will be full within days, a training run that has spent its budget."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.urls_from):  # it may be an address, so it is not shown
            raise ValueError("urls_from: expected the name of an environment variable, such as PLM_NOTIFY_URLS")
