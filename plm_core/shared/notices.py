"""Section ``notify``: whom the pipeline tells what happened. Read by the flow, and checked by ``tasks/check.py``."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

Event = Literal["failure", "refusal", "promotion", "rollback", "missed", "disk", "budget"]
EVENTS: tuple[Event, ...] = get_args(Event)


@dataclass(frozen=True)
class NotifyConfig:
    """Who is told, and of what. The addresses are secrets: the section names where they are, and never holds one."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"strict": True, "extra": "forbid"}
    """As ``plm_core.config.section`` sets it, which this room does not know."""

    urls_from: str = "PLM_NOTIFY_URLS"
    """The environment variable that holds the addresses, as the library apprise writes them, with spaces between.
    Nobody is told where it is not set."""
    events: tuple[Event, ...] = EVENTS
    """What is told: a run that failed, a model that the gate refused, one that it promoted, a rollback, a scheduled run
    that did not happen, a disk that will be full within days, a training that has spent its budget."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.urls_from):  # it may be an address, so it is not shown
            raise ValueError("urls_from: expected the name of an environment variable, such as PLM_NOTIFY_URLS")
