"""Parameters as they are read from their file."""

import pytest

from plm_core.shared.errors import UserError
from plm_core.shared.params_file import PARAMS, read


@pytest.mark.parametrize("text", ["2026-01-02", "2026-01-02 03:04:05"])
def test_yaml_dates_are_read_as_text(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PARAMS.write_text(f"sources:\n  {text}: {text}\n")
    assert read("sources") == {text: text}


@pytest.mark.parametrize("name", ["yes", "no", "on", "True"])
def test_yaml_boolean_as_a_name_is_refused_unless_quoted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PARAMS.write_text(f"options:\n  other: 'x'\n  {name}: 'right'\n")
    with pytest.raises(
        UserError, match=rf"^params\.yaml:3: {name} is true or false in YAML, not a name; expected it in q"
    ):
        read("options")
    PARAMS.write_text(f"options:\n  '{name}': yes\n")
    assert read("options") == {name: True}
