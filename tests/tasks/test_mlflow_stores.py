"""Where MLflow's stores are: what of an address may be said, and a SQLite store that was moved or copied."""

import shutil
import sqlite3
from pathlib import Path

import mlflow
import pytest
from mlflows import use

from tasks.tracking import mlflow_stores

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def client_of():
    """Opens the store in a folder, and makes it MLflow's own."""
    with pytest.MonkeyPatch.context() as patch:

        def opened(folder):
            uri = f"sqlite:///{folder}/mlflow.db"
            use(uri, patch)
            with mlflow_stores.exclusive(uri):
                return mlflow.MlflowClient(), uri

        yield opened


@pytest.fixture(scope="module")
def filled(tmp_path_factory, client_of):
    """A store with a run, a logged model and a version, each with a file."""
    folder = tmp_path_factory.mktemp("a_b%c") / "one"
    folder.mkdir()
    client, uri = client_of(folder)
    experiment, _ = mlflow_stores.experiment(client, uri, "plm")
    run = client.create_run(experiment).info.run_id
    client.log_text(run, "evidence", "evidence.txt")
    model = client.create_logged_model(experiment, "m", run)
    (folder / "weights").write_text("1")
    client.log_model_artifact(model.model_id, str(folder / "weights"))
    client.create_registered_model("plm")
    client.create_model_version("plm", f"models:/{model.model_id}", run, model_id=model.model_id)
    client.create_model_version("plm", f"{mlflow_stores.artifacts_of(uri)}/{run}/artifacts", run)
    elsewhere = client.create_experiment("another one's", "file:///elsewhere")
    client.create_run(elsewhere)
    return folder, run, model.model_id


@pytest.mark.parametrize("copied", [False, True])
def test_a_store_in_another_place_has_its_files_there(filled, tmp_path, client_of, copied):
    folder, run, model = filled
    there = tmp_path / "a place with spaces" / "two"
    shutil.copytree(folder, there)
    hidden = folder.with_name("hidden")
    if not copied:
        folder.rename(hidden)
    try:
        client, _ = client_of(there)
        # Not by the client, which remembers where a run's files lay.
        evidence = mlflow.artifacts.download_artifacts(client.get_run(run).info.artifact_uri + "/evidence.txt")
        assert evidence.startswith(str(there))
        assert Path(evidence).read_text() == "evidence"
        place = client.get_logged_model(model).artifact_location
        assert place.startswith(mlflow_stores.artifacts_of(f"sqlite:///{there}/mlflow.db"))
        for version in client.search_model_versions("name = 'plm'"):
            place = client.get_model_version_download_uri("plm", version.version)
            assert mlflow.artifacts.download_artifacts(place).startswith(str(there))
        later = client.create_run(client.get_run(run).info.experiment_id).info.run_id
        client.log_text(later, "more", "more.txt")
        assert (there / f"artifacts/{later}/artifacts/more.txt").read_text() == "more"
        assert folder.exists() == copied
        assert client.get_experiment_by_name("another one's").artifact_location == "file:///elsewhere"
    finally:
        if not copied:
            hidden.rename(folder)


def test_relocation_knows_every_path_column_of_mlflow(filled):
    """Another version of MLflow may keep places elsewhere, too."""
    folder, *_ = filled
    places = set()
    with sqlite3.connect(folder / "mlflow.db") as store:
        tables = [name for (name,) in store.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            for _, column, *_ in store.execute(f"pragma table_info({table})").fetchall():
                where = f"select count(*) from {table} where cast({column} as text) like '%/one/artifacts%'"
                if store.execute(where).fetchone()[0]:
                    places.add((table, column))
    assert places == set(mlflow_stores.PLACES)


def test_store_gets_its_name_once_complete(tmp_path):
    def half(uri, _):
        for ending in ("", "-journal"):
            Path(uri.removeprefix(mlflow_stores.SQLITE) + ending).write_text("half")
        raise KeyboardInterrupt

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(KeyboardInterrupt), mlflow_stores.exclusive(uri, half):
        pass
    assert not (tmp_path / "mlflow.db").exists()

    def whole(uri, place):
        with sqlite3.connect(uri.removeprefix(mlflow_stores.SQLITE)) as database:
            database.execute(f"create table places as select '{place}' as place")
        database.close()

    with mlflow_stores.exclusive(uri, whole), sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select place from places").fetchall() == [(mlflow_stores.artifacts_of(uri),)]
    database.close()
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.lock"}


def test_relocation_ignores_servers_and_missing_stores(tmp_path):
    mlflow_stores.follow("http://127.0.0.1:9")
    mlflow_stores.follow(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


SERVER = "https://bot:s3cr%40t@example.org:5000/mlflow"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SERVER, "https://example.org:5000/mlflow"),
        ("https://bot:p@ss@example.org", "https://example.org"),
        ("postgresql+psycopg2://bot:s3cret@db:5432/mlflow", "postgresql+psycopg2://db:5432/mlflow"),
        (f"API request to {SERVER}/api failed, {SERVER} too", "API request to {0}/api failed, {0} too"),
        (f"{{'uri': '{SERVER}'}}", "{{'uri': '{0}'}}"),
        ("sqlite:////srv/a@b/mlflow.db", "sqlite:////srv/a@b/mlflow.db"),
        ("mail to bot@example.org", "mail to bot@example.org"),
    ],
)
def test_store_address_hides_user_and_password(text, expected):
    assert mlflow_stores.without_credentials(text) == expected.format("https://example.org:5000/mlflow")
