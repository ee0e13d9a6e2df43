"""Parameters as they are read from their file."""

import pytest

from tasks.settings.params import PARAMS, read


@pytest.mark.parametrize("text", ["2026-01-02", "2026-01-02 03:04:05"])
def test_what_looks_like_a_date_is_text(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PARAMS.write_text(f"sources:\n  {text}: {text}\n")
    assert read("sources") == {text: text}
