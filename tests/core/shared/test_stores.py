"""Addresses of MLflow's stores: what of them may be kept and said."""

import pytest

from plm_core.shared.stores import shown

SERVER = "https://bot:s3cr%40t@example.org:5000/mlflow"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SERVER, "https://example.org:5000/mlflow"),
        ("https://token@example.org", "https://example.org"),
        ("https://bot:p@ss@example.org", "https://example.org"),
        ("postgresql+psycopg2://bot:s3cret@db:5432/mlflow", "postgresql+psycopg2://db:5432/mlflow"),
        (f"API request to {SERVER}/api failed, {SERVER} too", "API request to {0}/api failed, {0} too"),
        (f"{{'uri': '{SERVER}'}}", "{{'uri': '{0}'}}"),
    ],
)
def test_users_and_passwords_are_not_shown(text, expected):
    assert shown(text) == expected.format("https://example.org:5000/mlflow")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://127.0.0.1:5000/a@b",
        "sqlite:////srv/a@b/mlflow.db",
        "sqlite:///mlflow.db",
        "mail to bot@example.org",
    ],
)
def test_what_names_no_user_is_shown_as_it_is(text):
    assert shown(text) == text
