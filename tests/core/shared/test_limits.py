"""How many cores a process may use is known from the machine, and from its control groups."""

import os

import pytest

from plm_core.shared import environment


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        ("150000 100000", "300000 100000", 2),
        ("max 100000", "300000 100000", 3),
        ("20000 100000", None, 1),
        ("max 100000", "900000 100000", 7),
        (None, None, 7),
    ],
)
def test_cores_are_limited_by_cgroups(tmp_path, monkeypatch, own, above, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7))
    groups = [tmp_path / "a" / "b", tmp_path / "a"]
    monkeypatch.setattr(environment, "groups", lambda: iter(groups))
    for group, content in zip(groups, (own, above), strict=True):
        group.mkdir(parents=True, exist_ok=True)
        if content is not None:
            (group / "cpu.max").write_text(f"{content}\n")
    assert environment.cores() == expected
