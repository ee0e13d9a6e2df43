"""The whole graph, run once by a real `dvc repro` in a small copy of the project, and copies of the result."""

import pytest
from projects import Project, source, write_data


@pytest.fixture(scope="session")
def built(tmp_path_factory, documents):
    """The whole graph, run once by a real ``dvc repro``. Not to be written to."""
    project = Project(source(tmp_path_factory.mktemp("built") / "project"))
    write_data(project.root / "data", documents)
    project.change(sources__own__id_field="key")
    project.run("dvc", "init", "--no-scm", "--quiet")
    project.run("dvc", "config", "core.analytics", "false")
    project.run("dvc", "config", "core.check_update", "false")
    out, _ = project.run("dvc", "repro")
    (project.root / "repro.log").write_text(out)
    return project


@pytest.fixture
def small(built, tmp_path):
    """A copy of the built project, to be changed at will."""
    return built.copied(tmp_path / "project")
