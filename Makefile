# The commands of the project. Everything runs from .venv, which `make setup` builds from requirements.lock.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch is not in the lock: its build (CPU or CUDA) depends on the machine, its version does not.
TORCH := torch==2.13.0
UV := uv==0.13.8

export DO_NOT_TRACK := true
# pip must not install into the user's packages, even if its settings say so: a virtual environment does not see them.
export PIP_USER := 0
# Many processes import the same libraries, so their bytecode is cached, even if a container's environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: setup cluster team demo docs screenshots test test-slow prove bench-continual bench-data bench-finetune bench-gate bench-generate bench-gpu bench-overhead bench-reading bench-recipe bench-scale bench-snapshot bench-start bench-train reference roofline check fast-tests lock clean

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	@echo "Setting up $(VENV): locked dependencies, then $(TORCH) (a few minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(UV)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# The extras: `cluster` runs stages on the nodes of a Ray cluster, `team` runs a team's servers without containers.
cluster: $(VENV)/.cluster

$(VENV)/.cluster $(VENV)/.team: $(VENV)/.%: $(VENV)/.installed requirements-%.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements-$*.lock
	@touch $@

# The servers, until Ctrl-C. HOST is their public name; TLS chooses the certificates: docs/how-to/team.md.
TEAM ?= $(HOME)/plm-team
HOST ?= localhost
PORT ?= 7700
TLS ?= internal
team: $(VENV)/.team
	python infra/team/prepare.py $(TEAM) --host $(HOST) --port $(PORT) --tls "$(TLS)"
	TEAM=$(abspath $(TEAM)) exec supervisord --configuration infra/team/supervisord.conf

demo: setup
	plm run

# One process per core plus one, because some tests wait; at most nine, because each rebuilds the session fixtures.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(9, 1 + os.cpu_count()))')

# The checks run alongside the tests, because some tests wait.
test: setup
	$(MAKE) --no-print-directory --jobs 2 check fast-tests

fast-tests: setup
	pytest --numprocesses $(PROCESSES) --dist worksteal

# With MINUTES=20 no test starts after twenty minutes. Tests left out are named; each day begins with different ones.
test-slow: setup cluster $(VENV)/.team
	pytest -m slow --numprocesses $(PROCESSES) --dist worksteal $(if $(MINUTES),--minutes $(MINUTES))

# Kills processes and servers, fills disks, flips bits and breaks input, each many times, and ends with a table.
prove: setup
	pytest -m proof --capture=no

# The folder of the official GLUE download.
GLUE ?= ../shared/data/glue
bench-finetune: setup
	python tests/bench/bench_finetune.py --sst2 $(GLUE)/SST-2

# The folder with train.txt, valid.txt and test.txt of WikiText-2, and BLiMP's pairs as JSON lines.
WIKITEXT ?= ../shared/data/wikitext-2
BLIMP ?= ../shared/data/blimp/blimp.jsonl.gz
reference: setup
	python tests/bench/bench_reference.py --glue $(GLUE) --wikitext $(WIKITEXT) --blimp $(BLIMP)

bench-gate: setup
	python tests/bench/bench_gate.py

bench-overhead: setup
	python tests/bench/bench_overhead.py

bench-generate: setup
	python tests/bench/bench_generate.py

# DRY=1 runs it with tiny sizes on any machine. The default, all parts, is PARTS="correctness speed learning".
bench-gpu:
	python tests/bench/bench_gpu.py $(if $(DRY),--dry) $(PARTS)

bench-continual: setup
	python tests/bench/bench_continual.py

# MEGABYTES="100 200" sets the sizes of the text, here smaller ones.
bench-scale: cluster
	python tests/bench/bench_scale.py $(if $(MEGABYTES),--megabytes $(MEGABYTES))

bench-data: setup
	python tests/bench/bench_data.py

bench-reading: setup
	python tests/bench/bench_reading.py

bench-snapshot: setup
	python tests/bench/bench_snapshot.py

# Training a published model further, compared with transformers.
bench-start: setup
	python tests/bench/bench_start.py

bench-recipe: setup
	python tests/bench/bench_recipe.py

# How long a step should take on a GPU, computed from operations and bytes.
roofline: setup
	python tests/bench/bench_roofline.py

bench-train: setup
	python tests/bench/bench_train.py

# The reference pages from the code, and the site in artifacts/docs. A broken link within it is an error;
# `make docs LINKS=linkcheck` also checks links to other sites.
LINKS ?= html
docs: setup
	python docs/reference.py
	sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --builder $(LINKS) docs artifacts/docs
	@echo "the documentation: artifacts/docs/index.html"

# The screenshots of the documentation, from the pages of a pipeline that has run here. Needs Chromium.
screenshots: setup
	python infra/screenshots/take.py

check: setup
	python docs/reference.py --check
	ruff check .
	ruff format --check .
	lint-imports
	mypy

# sympy stands in for torch's remaining dependencies; the override leaves out torch itself, with its CUDA packages.
lock:
	printf 'sympy\nsetuptools>=77\n' > $(VENV)/torch-needs.in
	printf "torch ; python_version < '0'\n" > $(VENV)/no-torch.txt
	$(BIN)/uv pip compile pyproject.toml $(VENV)/torch-needs.in --extra dev --override $(VENV)/no-torch.txt \
		--universal --python-version 3.11 --generate-hashes --no-header --no-annotate --output-file requirements.lock
	for extra in cluster team; do \
		$(BIN)/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
			print(*project['optional-dependencies']['$$extra'], sep='\n')" \
		| $(BIN)/uv pip compile - --constraint requirements.lock --python-version 3.11 --generate-hashes --no-header \
			--no-annotate --output-file requirements-$$extra.lock; \
	done

# Removes what `make demo` can rebuild. Registered models, decisions, journals not yet sent to MLflow, imported models,
# sweeps and DVC's remote stay, because there is no other copy.
KEPT = mlflow journals remote imported sweeps
clean:
	rm -rf $(VENV) .dvc/cache .dvc/tmp
	[ ! -d artifacts ] || find artifacts -mindepth 1 -maxdepth 1 $(KEPT:%=! -name %) -exec rm -rf {} +
