# Every command of the project. Targets build .venv/ from the lock files first, when it is missing or out of date:
# what runs a broker from requirements.lock, what tests it from requirements-dev.lock, Spark from requirements-spark.lock.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run demo sim-demo quick test soak test-clients servers lint format sim sim-ci sim-long bench-core bench-broker bench-latency bench-grpc bench-compare bench-fair bench-turns bench-tier bench-schema bench-metadata bench-spark bench-pipeline java proto venv wheel test-wheel lock clean

unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: what one has compiled the others use

PYTHON ?=
SEEDS ?= 100
SEED ?= 0
PROFILE ?=
IDLE ?=
LISTEN ?= 127.0.0.1:6650
SECONDS ?= 30
MINUTES ?= 60
RATE ?= 2000
PLOT ?= demo.png
DATA_DIR ?= .danube
BEFORE ?=
PAIRS ?= 10

BIN := .venv/bin
STAMP := .venv/.built
DEV := .venv/.dev
SPARK := .venv/.spark
PROTO := src/pydanube/api/grpc/proto

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(STAMP) ## run a broker on this machine: LISTEN=host:port, DATA_DIR=the directory for all data
	$(BIN)/danube standalone --data-dir $(DATA_DIR) --listen $(LISTEN)

demo: $(SPARK) ## run a broker, orders, a Spark pipeline to a Delta table, and plot it: SECONDS=30 RATE=2000 PLOT=demo.png (needs Java)
	$(BIN)/python examples/demo/run.py --seconds $(SECONDS) --rate $(RATE) --plot $(PLOT)

sim-demo: $(STAMP) ## run the simulator's demonstration of faults, recovery and guarantees
	$(BIN)/python -m pydanube.sim demo

quick: $(DEV) ## run the short tests that need no process, server or Spark
	$(BIN)/python -m pytest -q -n auto --quick

test: $(SPARK) ## run the whole test suite
	$(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder

soak: $(DEV) ## load a broker process for MINUTES=60 at 70 % of its capacity, with kills and pauses, and check every guarantee
	cd tests && ../$(BIN)/python -m soak --minutes $(MINUTES)

test-clients: $(DEV) ## test the public Rust and Go clients against a broker (needs cargo, go, and their registries)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check grpcio-tools  # has a protoc, for the Rust client
	TEST_CLIENTS=1 $(BIN)/python -m pytest -q tests/grpc_face/test_other_clients.py

servers: $(STAMP) ## install the servers for tests into .servers/: moto, Swift, Azurite, Redis, an environment for Spark's executors
	tests/servers/install.sh $(BIN)/python

lint: $(SPARK) ## check style, format and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy --strict src

format: $(DEV) ## sort imports and format the code
	$(BIN)/python -m ruff check --select I --fix .
	$(BIN)/python -m ruff format .

sim: $(STAMP) ## run the simulator: SEEDS=number of seeds, SEED=the first one, PROFILE=one profile instead of the mix
	$(BIN)/python -m pydanube.sim run --seeds $(SEEDS) --first $(SEED) $(if $(PROFILE),--profile $(PROFILE))

sim-ci: $(STAMP) ## run the seeds that every change must pass: the mix and each narrow profile
	$(BIN)/python -m pydanube.sim ci

sim-long: $(STAMP) ## run the simulator for hours, with the number of seeds that a release needs on one machine
	$(BIN)/python -m pydanube.sim long

bench-core: $(DEV) ## measure batches, the journal, engines, cursors and topics on this machine
	$(BIN)/python bench/core.py

bench-broker: $(DEV) ## measure a broker and the Python client in two processes
	$(BIN)/python bench/broker.py

bench-latency: $(DEV) ## measure latency and processor time with and without `linger`, at four rates
	$(BIN)/python bench/latency.py

bench-grpc: $(DEV) ## measure the gRPC interface with a raw socket, compared with grpcio.aio
	$(BIN)/python bench/grpc_face.py

bench-compare: $(DEV) ## compare the broker's processor time with another version's: BEFORE=path to its src/, PAIRS=10
	$(BIN)/python bench/compare.py $(BEFORE) src --pairs $(PAIRS)

bench-fair: $(DEV) ## measure what a flood, an upload and a reader of cold messages do to a client at 1,000 messages/s
	$(BIN)/python bench/fair.py

bench-turns: $(DEV) ## find the longest turns of the loop under each benchmark and each hostile input of the tests, and their causes
	$(BIN)/python bench/turns.py

bench-schema: $(DEV) ## measure how fast payloads are validated against their schemas
	$(BIN)/python bench/schema.py

bench-metadata: $(DEV) ## measure three nodes of metadata on this machine: transactions, elections, catching up
	$(BIN)/python bench/metadata.py

bench-spark: $(SPARK) ## measure Spark reading from a broker, and writing to it (needs Java)
	$(BIN)/python bench/spark.py

bench-pipeline: $(SPARK) ## measure pipelines from topics to tables; IDLE=minutes measures an idle one (needs Java)
	$(BIN)/python bench/pipeline.py $(if $(IDLE),--idle $(IDLE))

java: ## install the Java that Spark needs, on Debian and Ubuntu
	@command -v apt-get >/dev/null || { echo "make java supports only apt-get; install Java 17 or newer in another way." >&2; exit 1; }
	$(if $(filter-out 0,$(shell id -u)),sudo) apt-get update
	$(if $(filter-out 0,$(shell id -u)),sudo) apt-get install --yes --no-install-recommends default-jre-headless

bench-tier: $(DEV) ## measure the cold tier: batches to Parquet and back, alone and in its processes
	$(BIN)/python bench/tier.py

wheel: $(STAMP) ## build the wheel into dist/
	@rm -f dist/*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

test-wheel: wheel ## install the wheel into an empty environment, bare and with each extra, and test it
	tests/wheel/check.sh dist/*.whl $(BIN)/python

proto: $(DEV) ## compile the .proto files of the gRPC interface (needs grpcio-tools in .venv/)
	@$(BIN)/python -c 'import grpc_tools' 2>/dev/null || { echo "make proto needs grpcio-tools: $(BIN)/pip install grpcio-tools." >&2; exit 1; }
	$(BIN)/python -m grpc_tools.protoc -I$(PROTO) --descriptor_set_out=$(PROTO)/descriptors.binpb $(PROTO)/*.proto

venv: $(STAMP) ## build only .venv/

lock: ## resolve the newest allowed dependencies into both lock files (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv." >&2; exit 1; }
	@set -e; \
	resolve() { \
	    note=$$1; file=$$2; shift 2; \
	    uv pip compile pyproject.toml "$$@" --universal --python-version 3.11 --upgrade --generate-hashes \
	        --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet --output-file .lock.new; \
	    { printf '# %s, with hashes, for Python 3.11 and newer. Regenerate with: make lock\n' "$$note"; cat .lock.new; } > $$file; \
	    rm -f .lock.new; \
	}; \
	resolve 'What a broker and its clients need' requirements.lock --group build --extra arrow --extra objects; \
	resolve 'What tests need beside requirements.lock' requirements-dev.lock --group dev --extra delta \
	    --constraint requirements.lock; \
	resolve 'What Spark needs beside the others' requirements-spark.lock --extra spark --extra pipeline --extra demo \
	    --constraint requirements.lock --constraint requirements-dev.lock

clean: ## remove .venv/ and every cache
	rm -rf .venv .servers .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# A candidate is tried by running it: a name on the PATH may be a shim with nothing behind it.
$(STAMP): requirements.lock pyproject.toml
	@set -e; \
	fail() { echo "$$1" >&2; exit 1; }; \
	for candidate in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	        then python=$$candidate; break; fi; \
	done; \
	[ -n "$${python:-}" ] || fail "Danube needs Python 3.11 or newer and found none; install it or name it: make PYTHON=<path>."; \
	"$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || \
	    fail "$$python lacks the modules venv and ensurepip; install them (on Debian and Ubuntu: apt install python3-venv)."; \
	echo "building .venv/ with $$("$$python" --version)"; \
	"$$python" -m venv --clear .venv || fail "$$python could not make a virtual environment in .venv/."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements.lock || \
	    fail "pip could not install requirements.lock; it needs a package index it can reach (pip's own message is above)."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation -e . || \
	    fail "pip could not install the project itself into .venv/ (pip's own message is above)."; \
	touch $@

# What only tests, or only Spark, need is beside what `make run` wants.
$(DEV): requirements-dev.lock $(STAMP)
	@$(call add,requirements-dev.lock,what tests need)
	@touch $@

$(SPARK): requirements-spark.lock $(DEV)
	@$(call add,requirements-spark.lock,Spark)
	@touch $@

define add
	echo "adding $(2) to .venv/"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r $(1) || \
	    { echo "pip could not install $(1); it needs a package index it can reach (pip's own message is above)." >&2; exit 1; }
endef
