"""Parameters are changed in the text of their file: the values are the new ones, and nothing else is another."""

import re

import pytest
import yaml
from projects import ROOT

from plm_core.config import UserError
from tasks.parameters.editing import edit_text

TEXT = """\
# What the file is.
models: [a, b] # which

sources: # where from
  one:
    reader: x

# Above clean.
clean:
  rules: # of someone
    words: {min: 4}
  languages: {keep: [en], share: 0.5} # null: any

steps: 3.0e-4
"""


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({"models": ["c"]}, "models: [a, b] # which", "models: [c] # which"),
        ({"steps": 7}, "steps: 3.0e-4", "steps: 7"),
        ({"sources": {"my": {"reader": "y"}}}, "  one:\n    reader: x\n", "  my: {reader: y}\n"),
        ({"sources.one.reader": "z"}, "reader: x", "reader: z"),
        ({"clean.rules": {}}, "  rules: # of someone\n    words: {min: 4}\n", "  rules: {}\n"),
        ({"clean.rules": {"a": 1, "b": None}}, "    words: {min: 4}\n", "    a: 1\n    b: null\n"),
        ({"clean.languages": None}, "{keep: [en], share: 0.5}", "null"),
        ({"clean.languages.share": 0.7}, "{keep: [en], share: 0.5}", "{keep: [en], share: 0.7}"),
        ({"clean.languages.more": True}, "{keep: [en], share: 0.5}", "{keep: [en], share: 0.5, more: true}"),
        ({"clean.mask": ["ip"]}, "share: 0.5} # null: any\n", "share: 0.5} # null: any\n  mask: [ip]\n"),
    ],
)
def test_yaml_edit_replaces_and_adds_values(changes, old, new):
    assert TEXT.count(old) == 1
    assert edit_text(TEXT, changes) == TEXT.replace(old, new)


def test_the_projects_own_parameters_survive_with_their_comments():
    text = (ROOT / "params.yaml").read_text()
    assert edit_text(text, {}) == text
    values = yaml.safe_load(text)
    for name, section in values.items():
        if name != "pretrain":  # the others of its sections refer to what is written in the first
            assert yaml.safe_load(edit_text(text, {name: section})) == values
    changed = edit_text(text, {"pretrain.gpt.training.steps": 7, "evaluate.prompts": None})
    steps = values["pretrain"]["gpt"]["training"]["steps"]
    for other in values["pretrain"].values():  # those that do not say how many
        if other["training"]["steps"] == steps:
            other["training"]["steps"] = 7
    values["evaluate"]["prompts"] = None
    assert yaml.safe_load(changed) == values
    assert changed.count("#") == text.count("#") - 1  # that of the prompts, which are gone


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("a:\n  b: 1", {"a.c": 2}, "a:\n  b: 1\n  c: 2\n"),
        ("a:\n  b:\n  c: 1\n", {"a.b": 5}, "a:\n  b: 5\n  c: 1\n"),
        ("a:\n  b: # why\n", {"a.b": [1]}, "a:\n  b: [1] # why\n"),
        ("a:\n  b: |-\n    x\n    y\n\nc: 1\n", {"a.b": {}}, "a:\n  b: {}\n\nc: 1\n"),
        ("a:\n  b: |\n    x\nc: 1\n", {"a.d": 2}, "a:\n  b: |\n    x\n  d: 2\nc: 1\n"),
    ],
)
def test_a_file_may_be_written_in_other_ways(text, changes, expected):
    assert edit_text(text, changes) == expected


ALIAS = "a: &m {x: 1}\nb: *m\n"


@pytest.mark.parametrize(
    ("text", "name", "value"), [(ALIAS, "a", {"z": 1}), (ALIAS, "a", None), ("a:\n  b: 1\n", "a.yes", {"z": 1})]
)
def test_yaml_edit_refuses_wider_changes(text, name, value):
    message = re.escape(f"{name} is written in a way that cannot be edited automatically; set it by hand")
    with pytest.raises(UserError, match=message):
        edit_text(text, {name: value})


def test_an_alias_on_a_line_of_its_own_is_left_to_a_person():
    with pytest.raises(UserError, match=r"^params\.yaml: b: its alias is on another line; expected both on one$"):
        edit_text("d: &d 1\na:\n  b:\n    *d\n", {"a.c": 2})


def test_yaml_edit_overrides_merged_keys():
    text = "a: &a\n  x: 1\n  b: &b\n    y: 2\nc:\n  <<: *a # as a\n  b:\n    <<: *b\nd: 3\n"
    changed = edit_text(text, {"c.x": 4, "c.b.y": 5, "c.b.z": 6})
    assert changed == text.replace("*b\nd", "*b\n    y: 5\n    z: 6\n  x: 4\nd")
    assert yaml.safe_load(changed)["a"] == {"x": 1, "b": {"y": 2}}


def test_a_section_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"^clean\.rule: no such section in params\.yaml"):
        edit_text(TEXT, {"clean.rule.words": 3})
