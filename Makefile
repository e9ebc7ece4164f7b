# What a developer and CI run; `make help` lists it. Needs Python 3.11 or newer with venv, and make; the rest comes from the lock files.

# The first interpreter that is new enough; `make PYTHON=/path/to/python3 ...` names another.
ifeq ($(origin PYTHON),undefined) # `?=` would look for it each time that it is used
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
endif
VENV := .venv
BIN := $(VENV)/bin
STATE_DIR ?= .cagrpc
RECORDING ?= three-deployments
PYTEST_ARGS ?= --numprocesses auto
# One test at a time to each worker, in order: the longest come first, and no worker waits long for another in the end.
PYTEST := $(BIN)/python -m pytest --maxschedchunk 1 $(PYTEST_ARGS)
BENCH_ARGS ?=
FUZZ_SECONDS ?= 600

# uv puts the locked packages in place in seconds, where pip takes a minute. It trusts the certificates that the machine
# trusts, but reads no configuration of pip's: an index of your own is its UV_DEFAULT_INDEX, or `make INSTALLER=pip ...`.
INSTALLER ?= uv
# The machine's pip brings uv, where it can install elsewhere: putting pip into the environment takes longer than all of that.
MACHINE_PIP = $(if $(shell $(PYTHON) -c 'import pip; print(tuple(map(int, pip.__version__.split(".")[:2])) >= (22, 3) or "")' \
	2>/dev/null),$(PYTHON) -m pip --python $(BIN)/python)
PIP := $(BIN)/python -m pip
ADD_PIP := $(BIN)/python -m ensurepip >/dev/null || { echo "$(PYTHON) has neither ensurepip nor pip 22.3 or newer. On Debian and Ubuntu: apt install python3-venv." >&2; exit 1; }
PIP_INSTALL := install --quiet --disable-pip-version-check
export UV_SYSTEM_CERTS ?= true
unexport PYTHONDONTWRITEBYTECODE # each start would take seconds longer: unlike pip, uv leaves compiling to the first import
INSTALL_uv := $(BIN)/uv pip install --quiet --python $(BIN)/python
INSTALL_pip := $(PIP) $(PIP_INSTALL)
INSTALL := $(or $(INSTALL_$(INSTALLER)),$(error INSTALLER is uv or pip, and not "$(INSTALLER)"))
PROTOS := $(VENV)/.stamp-protos
RUNTIME := $(VENV)/.stamp-runtime
DEVELOPMENT := $(VENV)/.stamp-development
FUZZING := $(VENV)/.stamp-fuzzing
DOCUMENTS := $(VENV)/.stamp-documents
NATIVE := $(VENV)/.stamp-native
# The native front of the gRPC servers is built where there is cargo; without it Python answers every call.
CARGO := $(shell command -v cargo)
CLIPPY := $(and $(CARGO),$(shell cargo clippy --version 2>/dev/null),$(shell cargo fmt --version 2>/dev/null))

.DEFAULT_GOAL := help
.PHONY: help venv native run kernels bytecode test test-cluster test-all test-long programs manifests fuzz lint lint-native format bench lock sbom audit digests docs release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

venv: $(RUNTIME) $(PROTOS) ## the environment that `make run` needs, from requirements.lock

native: $(NATIVE) ## the native front of the gRPC servers, which takes cargo

run: venv ## serve a demonstration to look at in a browser (ONCE=1: replay a recorded conversation instead, and exit)
	$(BIN)/cagrpc serve --log-level warning $(if $(ONCE),--state-dir $(STATE_DIR) --replay $(RECORDING) --once,--state-dir $(STATE_DIR)/demonstration --demonstration)

kernels: $(RUNTIME) ## compile the planner's kernels, if that is still to be done
	$(BIN)/python -m solver.planning.warm_up

test: $(DEVELOPMENT) $(PROTOS) ## lint, and the tests that need nothing but Python
	@$(MAKE) --no-print-directory --jobs 2 lint kernels bytecode
	$(PYTEST) -m "not cluster and not long"

# What tests import is compiled once, beside mypy, which takes longest here, and not in each worker. What fails in it fails
# again in them, where it is told.
bytecode: $(DEVELOPMENT) $(PROTOS)
	-@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1

test-cluster: programs $(DEVELOPMENT) $(PROTOS) $(NATIVE) $(if $(CLIPPY),lint-native) kernels ## the tests that need more: Kubernetes, the native front, a browser
	CAGRPC_REQUIRE_PROGRAMS=1 $(PYTEST) -m "cluster and not long"

test-all: test test-cluster ## both of them

test-long: programs $(FUZZING) $(PROTOS) $(NATIVE) kernels ## the nightly set: Karpenter, Cluster API, EC2, Helm, Prometheus, what repeats other tests, and more examples of properties
	$(BIN)/python -m tests.support.controlplane.binaries long
	CAGRPC_REQUIRE_PROGRAMS=1 $(PYTEST) -m long
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -m "hypothesis and not cluster and not long"

programs: | $(BIN)/python ## build what `make test-cluster` runs, Kubernetes, kubectl and the oracle over its scheduler, or say what the machine lacks for its tests
	$(BIN)/python -m tests.support.controlplane.binaries

manifests: $(DEVELOPMENT) $(PROTOS) ## render the plain manifests of deploy/ from the chart, and the configuration's part of its schema
	$(BIN)/python -m tools.manifests

fuzz: $(FUZZING) $(PROTOS) ## ten minutes (FUZZ_SECONDS=600) of coverage-guided fuzzing of every decoder
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m tests.api.decoders.fuzz

lint: $(DEVELOPMENT) $(PROTOS) ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config plugins/ec2/pyproject.toml

lint-native: ## rustfmt and clippy, which `make test-cluster` asks where they are
	cargo fmt --manifest-path native/Cargo.toml --check
	cargo clippy --quiet --locked --manifest-path native/Cargo.toml -- --deny warnings

format: $(DEVELOPMENT) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEVELOPMENT) $(PROTOS) ## the benchmarks; BENCH_ARGS="--markdown docs/reference/performance.md" rewrites the table there
	$(BIN)/python -m bench.planner --json build/bench.json $(BENCH_ARGS)
	$(BIN)/python -m bench.best_options
	$(BIN)/python -m bench.cluster_view
	$(BIN)/python -m bench.slack
	$(BIN)/python -m bench.report

# Hashes of every published file, so one lock serves every supported Python and platform; no index or path of the
# machine that made it. The build's requirements are in it, so that installing the project itself fetches nothing.
UPGRADE := --upgrade
LOCK := CUSTOM_COMPILE_COMMAND='make lock' env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL \
	$(BIN)/pip-compile --quiet $(UPGRADE) --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
LOCK_PROJECT := $(LOCK) --all-build-deps
lock: $(DEVELOPMENT) ## make the lock files anew from what pyproject.toml and plugins/ require; UPGRADE= keeps what need not change
	$(LOCK) --output-file requirements-uv.lock requirements-uv.in
	$(LOCK) --output-file requirements-ec2.lock plugins/ec2/requirements.in
	$(LOCK_PROJECT) --extra tracing --constraint requirements-ec2.lock --output-file requirements.lock pyproject.toml
	$(LOCK) --constraint requirements.lock --output-file requirements-native.lock requirements-native.in
	$(LOCK_PROJECT) --extra tracing --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
	$(LOCK) --constraint requirements-ec2.lock --constraint requirements-dev.lock --output-file requirements-ec2-dev.lock plugins/ec2/requirements.in plugins/ec2/requirements-dev.in
	$(LOCK_PROJECT) --extra tracing --extra docs --constraint requirements-dev.lock --output-file requirements-docs.lock pyproject.toml
	$(LOCK_PROJECT) --extra tracing --extra fuzz --constraint requirements-dev.lock --output-file requirements-fuzz.lock pyproject.toml

sbom: $(DEVELOPMENT) ## what is installed into the image, with licences, as CycloneDX in build/sbom.json; fails on a licence not allowed
	$(BIN)/python tools/sbom.py

# A project that cannot be looked up fails as well (--strict): without the network nothing is ever found. Hashes are pip's to check.
audit: $(DEVELOPMENT) ## known vulnerabilities of what the lock files pin; asks osv.dev, so it is for releases and not for `make test`
	$(BIN)/pip-audit --strict --disable-pip --vulnerability-service osv -r requirements-uv.lock -r requirements.lock -r requirements-ec2.lock -r requirements-native.lock -r requirements-dev.lock -r requirements-ec2-dev.lock -r requirements-docs.lock -r requirements-fuzz.lock
	@cargo audit --version >/dev/null 2>&1 || { echo "crates are looked up by cargo-audit, which is not here: cargo install --locked cargo-audit@0.22.2" >&2; exit 1; }
	cargo audit --file native/Cargo.lock

digests: $(DEVELOPMENT) $(PROTOS) ## pin images by their newest digests (IMAGE=registry/cagrpc:TAG: the pushed one too); needs docker buildx
	$(BIN)/python tools/digests.py $(IMAGE)
	$(BIN)/python -m tools.manifests

docs: $(DOCUMENTS) ## the site in build/site: documents, configuration, API; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

release: $(DEVELOPMENT) ## check that VERSION=X.Y.Z can be released, build it into dist/ and tag it; pushing the tag releases it
	$(BIN)/python tools/release.py $(VERSION)

clean: ## remove the environment and everything made
	rm -rf $(VENV) $(STATE_DIR) native/target native/build native/*.egg-info plugins/*/build plugins/*/*.egg-info build dist *.egg-info cagrpc/api/gen .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "cagrpc needs Python 3.11 or newer; python3 here is: $$(python3 --version 2>&1). Install a newer one, or say 'make PYTHON=/path/to/python3.11 ...'." >&2; exit 1; }
	@$(PYTHON) -c 'import venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: its venv module is missing. On Debian and Ubuntu: apt install python3-venv." >&2; exit 1; }
	$(PYTHON) -m venv --without-pip $(VENV)

$(VENV)/.stamp-uv: requirements-uv.lock | $(BIN)/python
	$(if $(MACHINE_PIP),,$(ADD_PIP))
	$(or $(MACHINE_PIP),$(PIP)) $(PIP_INSTALL) --require-hashes -r requirements-uv.lock
	@touch $@

$(VENV)/.stamp-pip: | $(BIN)/python
	$(ADD_PIP)
	@touch $@

# The project itself is installed in place: a change to the source needs no second `make venv`.
$(RUNTIME): requirements.lock pyproject.toml setup.py | $(VENV)/.stamp-$(INSTALLER)
	$(INSTALL) --require-hashes -r requirements.lock
	@# Nobody waits for the planner to be compiled, which is done once and kept beside its source.
	$(BIN)/python -m solver.planning.warm_up --background </dev/null >/dev/null 2>&1 &
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(NATIVE): requirements-native.lock $(wildcard native/*.toml native/Cargo.lock native/src/*.rs) | $(RUNTIME)
	@test -n "$(CARGO)" || { echo "The native front is built by cargo, which is not here: install Rust 1.85 or newer, by https://rustup.rs (the profile minimal is enough) or, on Debian and Ubuntu, apt install cargo." >&2; exit 1; }
	$(INSTALL) --require-hashes -r requirements-native.lock
	$(INSTALL) --no-deps --no-build-isolation ./native
	@touch $@

# The plug-ins as well, in place: configurations that name them are checked, and their tests are among the others.
$(DEVELOPMENT): requirements-dev.lock requirements-ec2-dev.lock $(wildcard plugins/*/pyproject.toml plugins/*/setup.py) | $(RUNTIME)
	$(INSTALL) --require-hashes -r requirements-dev.lock
	$(INSTALL) --require-hashes -r requirements-ec2-dev.lock
	$(INSTALL) --no-deps --no-build-isolation --editable ./plugins/ec2
	@touch $@

$(DOCUMENTS): requirements-docs.lock | $(DEVELOPMENT)
	$(INSTALL) --require-hashes -r requirements-docs.lock
	@touch $@

$(FUZZING): requirements-fuzz.lock | $(DEVELOPMENT)
	$(INSTALL) --require-hashes -r requirements-fuzz.lock
	@touch $@

$(PROTOS): $(wildcard protos/*.proto) tools/build_protos.py | $(RUNTIME)
	$(BIN)/python tools/build_protos.py
	@touch $@
