# The commands of the project. Everything runs from .venv, which `make setup` builds from requirements.lock.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch is not in the lock: which build it is (CPU or CUDA) is the machine's to choose, its version is not.
TORCH := torch==2.13.0
UV := uv==0.13.8

export DO_NOT_TRACK := true
# Many processes import the same libraries: they are compiled once, also where containers say otherwise.
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: setup cluster team demo docs graph screenshots test test-slow prove bench-data bench-finetune bench-gate bench-generate bench-gpu bench-overhead bench-reading bench-recipe bench-scale bench-snapshot bench-train reference roofline check fast-tests lock clean

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	@echo "Setting up $(VENV): locked dependencies, then $(TORCH) (a few minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(UV)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# The extras: stages on the nodes of a Ray cluster, a team's servers without containers.
cluster: $(VENV)/.cluster

$(VENV)/.cluster $(VENV)/.team: $(VENV)/.%: $(VENV)/.installed requirements-%.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements-$*.lock
	@touch $@

# The servers, until Ctrl-C. HOST is the name by which people reach them; TLS says whose certificates:
# docs/how-to/team.md.
TEAM ?= $(HOME)/plm-team
HOST ?= localhost
PORT ?= 7700
TLS ?= internal
team: $(VENV)/.team
	python infra/team/prepare.py $(TEAM) --host $(HOST) --port $(PORT) --tls "$(TLS)"
	TEAM=$(abspath $(TEAM)) exec supervisord --configuration infra/team/supervisord.conf

demo: setup
	plm run
	@plm status

# A process a core and one more, for some tests wait; at most nine, for each makes the fixtures of a session anew.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(9, 1 + os.cpu_count()))')

# The checks run beside the tests, of which some wait.
test: setup
	$(MAKE) --no-print-directory --jobs 2 check fast-tests

fast-tests: setup
	pytest --numprocesses $(PROCESSES) --dist worksteal

test-slow: setup cluster $(VENV)/.team
	pytest -m slow --numprocesses $(PROCESSES) --dist worksteal

# Processes killed, servers gone, disks full, bits flipped, input broken, each many times; a table at the end.
prove: setup
	pytest -m proof --capture=no

# Where the official GLUE download lies.
GLUE ?= ../shared/data/glue
bench-finetune: setup
	python tests/bench/bench_finetune.py --sst2 $(GLUE)/SST-2

# Where train.txt, valid.txt and test.txt of WikiText-2 lie, and BLiMP's pairs as JSON lines.
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

# With DRY=1 the same, tiny, on any machine; PARTS="correctness speed learning" are all.
bench-gpu:
	python tests/bench/bench_gpu.py $(if $(DRY),--dry) $(PARTS)

# With MEGABYTES="100 200" less of it.
bench-scale: cluster
	python tests/bench/bench_scale.py $(if $(MEGABYTES),--megabytes $(MEGABYTES))

bench-data: setup
	python tests/bench/bench_data.py

bench-reading: setup
	python tests/bench/bench_reading.py

bench-snapshot: setup
	python tests/bench/bench_snapshot.py

bench-recipe: setup
	python tests/bench/bench_recipe.py

# What a step should take on a GPU, by operations and bytes.
roofline: setup
	python tests/bench/bench_roofline.py

bench-train: setup
	python tests/bench/bench_train.py

# The reference pages from the code, and the site into artifacts/docs. A link inside it that leads nowhere is an error;
# `make docs LINKS=linkcheck` follows those to other sites too.
LINKS ?= html
docs: setup
	python docs/reference.py
	sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --builder $(LINKS) docs artifacts/docs
	@echo "the documentation: artifacts/docs/index.html"

# Each stage's source files, by its imports, into dvc.yaml; and the reference pages, which name parameters and stages.
graph: setup
	python -m flows.sources
	python docs/reference.py

# The pictures of the documentation, from the pages of a pipeline that has run here. It wants a Chromium.
screenshots: setup
	python infra/screenshots/take.py

check: setup
	python -m flows.sources --check
	python docs/reference.py --check
	ruff check .
	ruff format --check .
	lint-imports
	mypy

# sympy stands for what torch needs beyond the rest; torch itself is overridden away, with its CUDA packages.
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

# All that `make demo` makes again. Registered models, decisions, what is on its way to MLflow, what was imported,
# searched or pushed to the remote stay: nothing else has them.
KEPT = mlflow journals remote imported sweeps
clean:
	rm -rf $(VENV) .dvc/cache .dvc/tmp
	[ ! -d artifacts ] || find artifacts -mindepth 1 -maxdepth 1 $(KEPT:%=! -name %) -exec rm -rf {} +
