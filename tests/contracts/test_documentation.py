"""The pages are true: commands parse, parameters exist, links lead somewhere, the reference is the code's."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from flows.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PARAMETERS = (ROOT / "docs/reference/parameters.md").read_text()


def relative(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_paths_and_links_of_a_page_exist(page):
    """Paths in the project's folders, links to files and to their headings; what is generated is not looked for."""
    text = prose(page)
    places = set(re.findall(r"`((?:flows|tasks|plm_core|tests|infra|docs)/[\w./-]*)`", text))
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []
    for file, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^):]+)\)", text)):
        target = page.parent / file
        assert target.exists(), file
        assert not heading or heading in headings(target), f"{file}#{heading}"


def prose(page):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def headings(page):
    """What links to the headings of a page are called."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in titles}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 1500


def test_the_table_of_contents_has_every_page():
    """Those of the reference may not be there: they are made when the documentation is built."""
    index = (ROOT / "docs/index.md").read_text()
    entries = re.findall(r"^((?:how-to/|explanation/|reference/)?[\w-]+)$", index, re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in PAGES[2:]} - {"index"}
    assert pages <= {*entries}
    assert {entry for entry in {*entries} - pages if not entry.startswith("reference/")} == set()


@pytest.mark.slow  # and not among the contracts that a guide has its reader run: whoever follows it changes these lines
@pytest.mark.parametrize("page", [page for page in PAGES if page.name.startswith("add-")], ids=relative)
def test_guides_pass_the_contracts_and_their_tests(page, tmp_path):
    root = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, root], check=True)
    changes = re.findall(r"^```diff\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    apply = ["git", "apply", "-"]
    run = subprocess.run(apply, cwd=root, input="".join(changes), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    tests = re.findall(r"^\+\+\+ b/(tests/.*/test_.*\.py)$", page.read_text(), re.MULTILINE)
    contracts = ["tests/contracts/test_architecture.py", "tests/contracts/test_documentation.py"]  # of the code
    check = ["-m", "pytest", "-q", *contracts, *tests]
    for arguments in (["docs/reference.py"], check):
        env = os.environ | {"PYTHONPATH": str(root)}
        run = subprocess.run([sys.executable, *arguments], cwd=root, env=env, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr


def blocks(language):
    """Each page with its blocks of code in a language."""
    for page in PAGES:
        for block in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            yield pytest.param(block, id=f"{relative(page)}: {block.splitlines()[0]}")


def lines(block):
    """The commands of a block, without what a shell does with them."""
    block = re.sub(r"<<'(\w+)'.*?^\1$", "", block, flags=re.DOTALL | re.MULTILINE).replace("\\\n", " ")
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            del words[0]
        if words:
            yield [word for word in words if word not in ("&", "&&")]


def parsed(arguments):
    """Let the command ``plm`` parse arguments; it ends with an exception where it does not know them."""
    command = typer.main.get_command(app)
    context = command.make_context("plm", list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("block", [*blocks("sh")])
def test_every_command_of_a_page_exists(block):
    for program, *arguments in lines(block):
        if program == "plm" and not arguments:
            assert typer.main.get_command(app).invoke_without_command
        elif program == "plm":
            parsed(arguments)
        elif program == "make":
            targets = [word for word in arguments if "=" not in word]
            subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)
        elif program in ("python", "python3") and arguments[0] == "-m":
            assert (ROOT / f"{arguments[1].replace('.', '/')}.py").is_file() or arguments[1] in ("pytest", "venv")
        elif program == "dvc":
            from dvc.cli import parse_args

            parse_args(arguments)


def test_a_command_that_does_not_exist_is_found():
    for wrong in (["generat", "x"], ["seen", "--model", "gpt"], ["run", "--forced"]):
        with pytest.raises((SystemExit, Exception)):
            parsed(wrong)


@pytest.mark.parametrize("block", [*blocks("yaml")])
def test_every_parameter_of_a_page_exists(block):
    keys = {"name", "reader", "size", "preset", "min", "max", *re.findall(r"^\| `(\w+)` \|", PARAMETERS, re.MULTILINE)}
    sections = yaml.safe_load((ROOT / "params.yaml").read_text())
    for section, content in yaml.safe_load(block).items():
        if section in sections:
            assert unknown(content, keys, section) == []


def unknown(content, keys, place):
    """The keys that no class of the reference has; what a team names itself stands one below these sections."""
    if not isinstance(content, dict):
        return [name for item in content for name in unknown(item, keys, place)] if isinstance(content, list) else []
    named = place in (
        "sources",
        "examples",
        "pairs",
        "pretrain",
        "models",
        "tokenizers",
        "paragraphs",
        "documents",
        "shares",
        "options",
        "prompts",
        "metrics",
        "space",
    )
    undefined = [] if named else [f"{place}.{key}" for key in content if key not in keys]
    return undefined + [name for key, value in content.items() for name in unknown(value, keys, "" if named else key)]


def test_reference_pages_match_the_code():
    done = subprocess.run(
        [sys.executable, "docs/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_section_of_the_parameters_is_in_the_reference():
    for section in yaml.safe_load((ROOT / "params.yaml").read_text()):
        assert f"`{section}" in PARAMETERS


@pytest.mark.slow
def test_site_builds_and_its_links_resolve(tmp_path):
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--nitpicky", "docs", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tutorial.html").is_file()
