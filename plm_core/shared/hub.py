"""Whether the Hugging Face hub answers: its own libraries retry five times, for more than half a minute."""

import os
import urllib.error
import urllib.request

PATIENCE = 10
"""Seconds within which the hub must answer."""


def endpoint() -> str:
    """The hub's address, or that of another one: ``HF_ENDPOINT``."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def require_hub() -> None:
    """One request; OSError if the hub does not answer, whatever the answer is."""
    request = urllib.request.Request(endpoint(), method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except OSError as error:
        raise OSError(f"{endpoint()} does not answer ({error})") from error
