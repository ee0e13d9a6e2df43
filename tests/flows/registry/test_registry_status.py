"""The state of the models: cached next to an unchanged store, and shown as the gate has seen them."""

import contextlib
import io
import os
import sqlite3

import pytest
from rich.console import Console

from flows.registry import registry_status

PARAMS = """
tracking: {{uri: "sqlite:///{database}", experiment: plm}}
promotion: {{registered_model: {model}, primary: score, alpha: 0.05, margin: 0.01, metrics: {{}}}}
"""


@pytest.fixture
def store_answers(monkeypatch):
    """The store's answers, one a question: how many questions there were."""
    answers = []

    def ask(root):
        answers.append({"model": "plm", "tracking_uri": "", "versions": [{"question": len(answers)}]})
        return answers[-1]

    monkeypatch.setattr(registry_status, "from_mlflow", ask)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return answers


@pytest.fixture
def root(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS.format(database="store.db", model="plm"))
    write(tmp_path, "create table aliases (name)")
    os.utime(tmp_path / "store.db", (7, 7))  # asking MLflow takes longer than a tick of the clock, the test does not
    return tmp_path


def write(root, statement):
    with sqlite3.connect(root / "store.db") as database:
        database.execute(statement)
    database.close()


def test_registry_status_cache_is_invalidated_by_changes(root, store_answers):
    assert [registry_status.registry_status(root) for _ in range(3)] == store_answers * 3
    write(root, "insert into aliases values ('champion')")
    assert [registry_status.registry_status(root) for _ in range(2)] == [store_answers[1]] * 2
    (root / "params.yaml").write_text(PARAMS.format(database="store.db", model="other"))
    assert registry_status.registry_status(root) == store_answers[2]
    for number, unreadable in enumerate(("{", "[]", "{}"), 3):
        (root / "store.db.status.json").write_text(unreadable)
        assert registry_status.registry_status(root) == store_answers[number]


def test_registry_status_notices_the_write_ahead_log(root, store_answers):
    with contextlib.closing(sqlite3.connect(root / "store.db")) as database:
        database.execute("pragma journal_mode = wal")
        registry_status.registry_status(root)
        with database:
            database.execute("insert into aliases values ('champion')")
        assert registry_status.registry_status(root) == store_answers[1]


def test_registry_status_never_caches_a_server(root, store_answers, monkeypatch):
    for address in ("http://127.0.0.1:9", "", ""):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        registry_status.registry_status(root)
    assert len(store_answers) == 2


def version(number, aliases, **other):
    fields = {"version": number, "aliases": aliases, "stage": "pretrain@gpt", "gate": None, "reasons": None}
    return {**fields, "compared": None, **other}


def test_the_gate_s_own_numbers_are_shown_and_what_was_left_out_with_its_reason():
    row = {"metric": "era/score", "champion": 0.7285, "challenger": 0.6755, "difference": -0.053, "tolerance": 0.03}
    row |= {"examples": 1234, "verdict": "worse", "note": ""}
    left = {"metric": "tickets/score", "verdict": "not measured", "note": "the challenger was not measured on it"}
    compared = {"champion": "1", "table": [row, left]}
    first = version(
        "1",
        ["champion"],
        gate="passed",
        reasons="there is no champion yet",
        compared={
            "champion": None,
            "table": [left, row | {"champion": None, "difference": None, "verdict": "no champion"}],
        },
    )
    third = version("3", ["challenger", "champion"], gate="refused", reasons="worse by 0.1", ancestor_sha256="second")
    neither = {"metric": "x", "champion": None, "challenger": None, "difference": None, "verdict": "not measured"}
    compared["table"].append(neither | {"note": "neither has it"})
    digests = {"checkpoint_sha256": "second", "ancestor_sha256": "gone"}
    second = version("2", ["challenger"], gate="refused", reasons="worse by 0.053", compared=compared) | digests
    out = io.StringIO()
    registry_status.show(
        Console(file=out, width=200),
        {"model": "plm", "versions": [third, second, first, version("0", [])], "notice": "odd"},
    )
    text = out.getvalue()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "era/score" in line]
    assert cells == [
        ["2", "1", "era/score", "0.7285", "0.6755", "-0.0530", "0.03", "1,234", "worse"],
        ["1", "", "era/score", "", "0.6755", "", "0.03", "1,234", "no champion"],
    ]
    assert text[text.index("version 2: ") :].splitlines() == [
        "version 2: tickets/score not compared: the challenger was not measured on it",
        "version 1 (champion), pretrain@gpt: passed. there is no champion yet",
        "version 2 (challenger), pretrain@gpt: refused. worse by 0.053",
        "version 3 (champion), pretrain@gpt, carried on from version 2: made the champion by hand after it was "
        "refused. worse by 0.1",
        "warning        odd",
        "champion       plm version 3",
    ]
