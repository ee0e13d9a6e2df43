"""The `plm` command as a process: what it imports, what it prints, how it ends."""

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import urllib.request
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import typer
from registries import PARAMS
from registries import project as with_store
from toys import alive, free_port, plm, wait_for

from flows import cli
from flows.processes import supervisor
from flows.registry import registry_status
from flows.run.checkout import lock_checkout
from flows.schedule import history
from plm_core.shared.options import TOKENIZERS, SamplingConfig

REPOSITORY = Path(__file__).parents[2]
HEAVY = ["prefect", "dvc", "mlflow", "torch", "rich", "pandas"]


@pytest.fixture
def project(toy, empty_store):
    root = toy(
        "stages:\n"
        "  first:\n    cmd: echo a > a\n    outs: [a]\n"
        "  second:\n    cmd: cat a > b\n    deps: [a]\n    outs: [b]\n",
    )
    return with_store(root, empty_store)


def test_help_of_every_command_imports_nothing_heavy():
    code = (
        "import sys\nfrom flows import cli\n"
        "try:\n    cli.main([*sys.argv[1:], '--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    commands = [[entry.name or entry.callback.__name__] for entry in cli.app.registered_commands]
    for command in [[], *commands, ["tokenizer"], ["tokenizer", "compare"]]:
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", command
        assert done.stdout.startswith(" ".join(["Usage: plm", *command]))


def test_help_says_how_tokens_are_drawn_and_by_what_defaults(project):
    help_text = " ".join(plm(project, "generate", "--help").stdout.split())
    for field in fields(SamplingConfig):
        default = "until-end" if field.default is True else field.default
        option = help_text.split(f" --{field.name.replace('_', '-')} ")[1].split("]")[0]
        assert option.endswith(f" [default: {default}"), field.name
    assert "--no-until-end" in help_text


def test_wrong_command_line_names_what_was_expected(project):
    for arguments, message in [
        (("seen", "--model", "gpt"), "Missing option '--step'"),
        (("export", "there", "--to", "tf"), "'tf' is not one of 'hf', 'mlflow', 'gguf', 'gguf-f32', 'gguf-q8_0'"),
        (("rollback",), "Missing option '--reason'"),
        (("statsu",), "Did you mean 'status'"),
        (("generate", "Ba", "--top-k", "-3"), "error: generate.top_k: -3; expected at least 0"),
        (("generate", "Ba", "--model", "gpt", "--checkpoint", "x"), "error: --model gpt, --checkpoint x: expected one"),
    ]:
        done = plm(project, *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert message in done.stderr


def test_kinds_of_tokenizers_are_those_of_the_core_and_the_task_is_run_in_the_project(project):
    from plm_core.text.tokenizers import NOT_LEARNED

    assert tuple(NOT_LEARNED) == TOKENIZERS
    params = project / "params.yaml"
    params.write_text(params.read_text() + "models: {gpt: own}\ntokenizers: {own: {vocab_size: 307}}\n")
    done = plm(project, "tokenizer", "compare", "307", "99", "--kind", "wordpiece", "--lowercase", "--json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: artifacts/corpus/splits/train.parquet: missing")
    done = plm(project, "tokenizer", "compare", "307", "--kind", "bpe", "--kind", "morfessor")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: tokenizer compare: --kind morfessor; expected bpe, unigram, wordpiece, byte")


def test_status_as_json_names_each_stage_with_its_reasons_and_the_registry(project):
    done = plm(project, "status", "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert [(stage["name"], stage["up_to_date"]) for stage in status["stages"]] == [("first", False), ("second", False)]
    assert all(stage["reasons"] for stage in status["stages"])
    assert status["registry"]["model"] == "plm"
    assert status["registry"]["versions"] == []


def test_before_the_first_run_the_status_is_a_line_and_parameters_are_read(project):
    done = plm(project, "status")
    assert (done.returncode, done.stdout) == (0, "nothing has run yet: start with `plm run`\n")


def test_without_a_command_the_state_of_the_project_and_the_next_commands_are_shown(project):
    begin = "last run       "
    assert plm(project).stdout.splitlines() == [
        f"{begin}none yet",
        "plm init FOLDER         propose parameters for your own text",
        "plm run                 run the pipeline",
        "plm --help              all commands",
    ]
    history.update(project, begun=86400.0)
    with lock_checkout(project, pipeline=True):
        first, *others = plm(project).stdout.splitlines()
    assert first == f"{begin}began 1970-01-02 00:00 UTC, still running"
    assert [line.split("  ")[0] for line in others] == ["plm ui prefect", "plm ui mlflow"]
    sentences = [{"headline": f"[{name}] is best", "figures": "0.5."} for name in "abcdef"]
    (project / "artifacts/report").mkdir(parents=True)
    (project / "artifacts/report/verdict.json").write_text(json.dumps(sentences))
    expected = [*(f"[{name}] is best, 0.5." for name in "abcd"), "report         artifacts/report/report.html"]
    for _ in range(2):  # the first one completes a new store, the second one's answer is kept
        registry_status.registry_status(project)
    code = (
        "import sys\nfrom flows import cli\ntry:\n    cli.main([])\n"
        f"finally:\n    sys.exit([name for name in {HEAVY!r} if name in sys.modules] != ['rich'])\n"
    )
    for error, following in (
        ("", ["plm status", "plm ui mlflow", "plm ui prefect"]),
        ("a: exit status 3", ["plm run", "plm doctor", "plm ui prefect"]),
    ):
        history.update(project, ended=90000.0, error=error)
        done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        first, champion, *others = done.stdout.splitlines()
        assert first.endswith(f"failed: {error}" if error else "all well")
        assert champion == "champion       none yet"
        assert others[:5] == expected
        assert [line.split("  ")[0] for line in others[5:]] == following


@pytest.mark.slow
def test_a_run_as_json_is_nothing_but_that(project):
    done = plm(project, "run", "--json")
    ran = json.loads(done.stdout)
    assert [(stage["name"], stage["outcome"]) for stage in ran["stages"]] == [("first", "ran"), ("second", "ran")]
    assert (done.returncode, ran["error"], ran["verdicts"], ran["models"]) == (0, "", [], [])
    assert ran["seconds"] > 0


def test_bash_completes_commands(project):
    done = plm(project, _PLM_COMPLETE="complete_bash", COMP_WORDS="plm sta", COMP_CWORD="1")
    assert done.stdout.split() == ["status"]


def test_outside_a_project_the_error_says_where_to_go(tmp_path):
    done = plm(tmp_path, "status")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "dvc.yaml" in done.stderr


@pytest.mark.slow
def test_models_of_the_workspace_and_folders_are_compared_from_anywhere_in_the_project(project):
    rows = "".join(f"{i},s{i},100,20,{{}},bits_per_byte,r\n" for i in range(9))
    for name, nats in (("artifacts/evidence/gpt", 200), ("below/mine", 190)):
        (project / name).mkdir(parents=True)
        lines = "id,sha256,bytes,tokens,nats,quantity,measured\n" + rows.format(*[nats] * 9)
        (project / name / "likelihood.csv").write_text(lines)
    done = plm(project / "below", "compare", "gpt", "mine")
    assert done.returncode == 0, done.stderr
    assert "mine is better" in done.stdout
    assert (project / "artifacts/compare/gpt-mine/compare.json").is_file()
    done = plm(project / "below", "compare", "gpt", "mine", "--json", "--out", "here")
    assert json.loads(done.stdout)["second"] == "mine"
    assert (project / "below/here/compare.md").is_file()
    done = plm(project, "compare", "gpt", "champion")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: plm: no version or alias 'champion'; versions are: none yet")


@pytest.mark.slow
def test_export_and_import_commands_round_trip(project, trained):
    from plm_core import checkpoint

    shutil.copytree(trained, project / "artifacts/models/tiny")
    digest = checkpoint.load(trained).digest
    done = plm(project, "export", "--to", "hf", "out", "--model", "tiny")
    assert done.returncode == 0, done.stderr
    assert json.loads((project / "out/config.json").read_text())["model_type"] == "gpt2"
    done = plm(project, "import", "out", "--name", "again")
    assert done.returncode == 0, done.stderr
    assert f"start: {{checkpoint: artifacts/imported/again, sha256: {digest}}}\n" in done.stdout
    assert checkpoint.load(project / "artifacts/imported/again").digest == digest
    done = plm(project, "import", "out", "--name", "again")
    assert done.stderr.startswith("error: name: artifacts/imported/again exists; choose another name")
    done = plm(project, "import", "params.yaml", "--name", "file")
    assert done.stderr.endswith("params.yaml/config.json: missing; expected a folder of transformers\n")
    done = plm(project, "import", "out", "--name", "../out")
    assert (done.returncode, done.stderr[:13]) == (2, "error: name: ")


@pytest.fixture
def trained(tmp_path, tokenizer, make_gpt):
    """The checkpoint of a tiny GPT."""
    import torch

    from plm_core import checkpoint

    model = make_gpt(dtype=torch.float32, vocab_size=tokenizer.vocab_size)
    with torch.no_grad():  # far from uniform
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    config = checkpoint.CheckpointConfig(
        checkpoint.FORMAT, "gpt", "causal", asdict(model.config), tokenizer.sha256, step=99, valid_nats=5.25
    )
    checkpoint.save(tmp_path / "trained", model.state_dict(), tokenizer, config)
    return tmp_path / "trained"


def test_prompts_are_continued_by_a_checkpoint_with_every_option(project, trained):
    from plm_core import checkpoint
    from plm_core.generation import generate

    prompts = ["Ba", "-- to", ""]
    wanted = SamplingConfig(7, until_end=False, temperature=3.5, top_k=99, top_p=0.9, repetition_penalty=1.5, seed=5)
    options = ["--max-new-tokens=7", "--no-until-end", "--temperature=3.5", "--top-k=99", "--top-p=0.9"]
    options += ["--repetition-penalty=1.5", "--seed=5", f"--checkpoint={trained}"]
    loaded = checkpoint.load(trained)
    texts = [p + generate(loaded, p, replace(wanted, seed=5 + row)) for row, p in enumerate(prompts)]
    done = plm(project, "generate", *options, "--", *prompts)
    assert done.stdout == "\n\n".join(texts) + "\n", done.stderr


@pytest.mark.slow
def test_attention_command_writes_to_the_current_folder(project, trained):
    (project / "below").mkdir()
    done = plm(project / "below", "attend", "Ba $x", f"--checkpoint={trained}", "--out=maps.png")
    assert done.returncode == 0, done.stderr
    assert "2 layer(s), 3 head(s)" in done.stdout
    data = (project / "below/maps.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 300 < height
    assert width > height  # three heads beside each other, two layers below each other


@pytest.mark.slow
def test_attention_to_a_text_of_many_tokens_is_refused_with_both_numbers(project, trained):
    done = plm(project, "attend", "Ba " * 99, f"--checkpoint={trained}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: attend.text: found ")
    assert "expected at most 13" in done.stderr
    assert not (project / "attention.png").exists()


@pytest.mark.slow
def test_generate_reports_truncated_and_empty_prompts(project, trained):
    done = plm(project, "generate", "--max-new-tokens=2", f"--checkpoint={trained}", "--", "Ba " * 99, "", " ", "Ba")
    assert done.returncode == 0, done.stderr
    long, empty = done.stderr.splitlines()
    assert long.startswith("note: the prompt has ")
    assert long.endswith("tokens; the model reads at most the last 13")
    assert empty.startswith("note: the prompt is empty")


@pytest.mark.slow
def test_unknown_model_error_lists_sections_and_versions(project):
    (project / "artifacts/models/bert").mkdir(parents=True)
    done = plm(project, "generate", "Ba", "--model", "bertt")
    assert done.returncode == 2
    assert "no version or alias 'bertt'; versions are: none yet; trained sections are: bert" in done.stderr


def test_init_looks_at_the_folder_from_where_plm_was_called(project):
    (project / "below/texts").mkdir(parents=True)
    done = plm(project / "below", "init", "texts", "--dry-run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: below/texts: nothing to read in it")


def test_the_address_of_a_server_is_shown_without_its_password(tmp_path, monkeypatch, capsys):
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bot:s3cret@example.org")
    cli.ui("mlflow")
    assert capsys.readouterr().out.startswith("open http://example.org in a browser: ")


def test_prefect_server_refuses_cross_origin_calls(project, monkeypatch):
    started = []
    monkeypatch.chdir(project)
    process = contextlib.nullcontext(SimpleNamespace(wait=lambda: 0))
    monkeypatch.setattr(supervisor, "start_supervisor", lambda *_, **options: started.append(options["env"]) or process)
    for given in ({}, {"PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": "https://prefect.example"}):
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(typer.Exit):
            cli.ui("prefect", 4300)
    assert [env["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] for env in started] == [
        "http://127.0.0.1:4300,http://localhost:4300",
        "https://prefect.example",
    ]


@pytest.fixture
def child(project):
    """A project in which `plm init` only tells what a process of the project's finds around it."""
    (project / "tasks/commands").mkdir(parents=True)
    (project / "tasks/__init__.py").touch()
    code = "import getpass, os\nfrom pathlib import Path\nPath('\u00fc.txt').write_text('\u2581')\n"
    code += "print('\u2581', getpass.getuser(), sorted(os.environ))\n"
    (project / "tasks/commands/init.py").write_text(code, encoding="utf-8")
    return project


def test_stale_shell_variables_are_dropped_with_one_warning(child):
    of_mlflow = dict.fromkeys(["MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_REGISTRY_URI"], "77")
    of_ranks = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1"}
    of_a_hook = {"GIT_INDEX_FILE": "/its/index", "GIT_DIR": "/its/.git"}
    done = plm(child, "init", ".", **of_mlflow, **of_ranks, **of_a_hook, MLFLOW_TRACKING_TOKEN="of the server")
    assert done.returncode == 0, done.stderr
    assert not [name for name in of_mlflow | of_ranks | of_a_hook if f"'{name}'" in done.stdout]
    assert "MLFLOW_TRACKING_TOKEN" in done.stdout
    second, first = done.stderr.splitlines()
    assert first.startswith("warning: ignoring MLFLOW_RUN_ID, MLFLOW_EXPERIMENT_ID, MLFLOW_REGISTRY_URI from the shell")
    assert second.startswith("warning: ignoring RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT from the shell")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "mlflow.example.org"}, "127.0.0.1,localhost,mlflow.example.org"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_servers_on_this_machine_are_reached_without_a_proxy(child, monkeypatch, before, after):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (child / "tasks/commands/init.py").write_text("import os\nprint(os.environ['no_proxy'])\n")
    assert plm(child, "init", ".", **before).stdout == f"{after}\n"


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "\\u2581"),
        ({"PYTHONIOENCODING": "latin-1"}, "\\u2581"),
        ({"PYTHONUTF8": "0", "LC_ALL": "C"}, "\u2581"),
    ],
)
def test_terminal_without_unicode_gets_escapes_and_files_utf8(child, env, shown):
    done = plm(child, "init", ".", **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == shown
    assert (child / "\u00fc.txt").read_bytes() == "\u2581".encode()


def test_a_user_without_a_name_is_named_by_the_number(child):
    other = ["unshare", "--user", "--map-user=54321"]
    if subprocess.run([*other, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of users here")
    names = ("LOGNAME", "USER", "LNAME", "USERNAME")
    done = plm(child, "init", ".", before=[*other, "env", *(f"--unset={name}" for name in names)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "54321"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "path", "sent"), [("prefect", "api/health", signal.SIGTERM), ("mlflow", "health", signal.SIGKILL)]
)
def test_a_server_ends_with_its_command(project, which, path, sent):
    port = free_port()
    command = [sys.executable, "-m", "flows.cli", "ui", which, "--port", str(port)]
    process = subprocess.Popen(command, cwd=project, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    started = []
    try:
        wait_for(lambda: process.poll() is not None or _answers(f"http://127.0.0.1:{port}/{path}"))
        assert process.poll() is None
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sent)
        process.wait()
        wait_for(lambda: not any(alive(child.pid) for child in started))
        assert len(started) > 1
    finally:
        for child in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()


def _answers(address):
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
        return answer.status == 200
    return False


def test_bytecode_is_cached_whatever_the_environment_says(project, tmp_path):
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    command = [sys.executable, "-m", "flows.cli", "nights"]
    subprocess.run(command, cwd=project, env={**os.environ, **env}, stdout=subprocess.DEVNULL, check=True)
    assert list(tmp_path.glob("compiled/**/flows/schedule/history.*.pyc"))
