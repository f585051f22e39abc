# Everything runs in .venv, which `make setup` makes with nothing but Python 3.11 or newer.
# PYTHON=python3.12 chooses the interpreter, JOBS=4 how many tests run at a time, TESTS=tests/test_docs.py which.

VENV = .venv
PY = $(VENV)/bin/python
INSTALLED = $(VENV)/installed
STUBS = peer/network/wire/stubs
PIP_INSTALL = pip install --quiet --disable-pip-version-check
LOCK = uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-annotate \
    --custom-compile-command 'make lock' $(UPGRADE)
PACKAGES = constraints.txt requirements/pip.txt requirements/torch-cpu.txt
PROTOC = $(PY) -m grpc_tools.protoc -Iproto dfl/v1/peer.proto
CORES = $$(n=`nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2`; [ "$$n" -le 8 ] || n=8; echo "$$n")
JOBS = $(CORES)
TESTS = tests
# Compiled once, also where the environment says not to: each worker imports all tests, and each command the package.
PYTEST = PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $(JOBS) --dist worksteal --ignore tests/engines

.PHONY: setup lock demo test test-long test-engines check bench chaos fuzz proto docs site screenshots clean

setup: $(INSTALLED)

# Every package is checked against its hash. pip cannot hash a directory, so this one is installed alone and first; and
# of two torches it would take the one with CUDA, so a CPU build comes before, where pip's settings name a place for it.
# The stamp is written last: an installation that was interrupted is done again.
$(INSTALLED): $(PACKAGES) pyproject.toml
	@set -e; \
	enough='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$python" -c "$$enough" 2>/dev/null; then break; fi; python=; \
	done; \
	if [ -z "$$python" ]; then \
	    echo 'make: no Python 3.11 or newer with the venv module; install one, or give PYTHON=/path/to/python3' >&2; \
	    exit 1; \
	fi; \
	echo "Installing into $(VENV); the first time takes a few minutes."; \
	$(PY) -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear $(VENV)
	$(PY) -m $(PIP_INSTALL) -r requirements/pip.txt
	@$(PY) -m pip show --quiet torch 2>/dev/null || \
	    $(PY) -m $(PIP_INSTALL) --no-deps -r requirements/torch-cpu.txt 2>/dev/null || true
	$(PY) -m $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	$(PY) -m $(PIP_INSTALL) -c constraints.txt 'dfl[test]'
	@touch $(INSTALLED)

# Needs uv. Versions stay as they are where pyproject.toml allows it; UPGRADE=--upgrade takes the newest.
lock:
	printf 'pip\nsetuptools\n' | $(LOCK) - -o requirements/pip.txt
	$(LOCK) pyproject.toml --extra test --extra encrypted --extra ssh --extra gpu --extra adapters --extra frameworks --extra datasets --extra onnx --extra browser --extra dask --extra docs --no-emit-package setuptools -o constraints.txt

demo: setup
	$(VENV)/bin/dfl-launch run examples/demo.yaml --fresh

# Some wait more than they compute: one more at a time than there are cores.
test: JOBS = $$(($(CORES) + 1))
test: setup
	$(PYTEST) -m 'not long' $(TESTS)

# Federations of real processes and hosts that are killed, cut and waited for; and simulations with more seeds.
test-long: setup
	$(PYTEST) -m long $(TESTS)

# What needs packages that most do not have.
test-engines: setup
	$(PY) -m $(PIP_INSTALL) -c constraints.txt 'dfl[adapters,browser,dask,datasets,docs,encrypted,frameworks,onnx,ssh]'
	$(PY) -m pytest tests/engines

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	@made=`mktemp -d` && trap 'rm -r "$$made"' EXIT && \
	$(PROTOC) --python_out="$$made" --pyi_out="$$made" && \
	for stub in dfl/v1/peer_pb2.py dfl/v1/peer_pb2.pyi; do \
	    cmp "$$made/$$stub" $(STUBS)/$$stub || { echo 'The stubs are not those of proto/: run make proto.' >&2; exit 1; }; \
	done

bench: setup
	$(PY) -m benchmarks

chaos: setup
	$(PY) -m tests.faults.chaos

fuzz: setup
	$(PY) -m tests.faults.fuzz

proto: setup
	$(PROTOC) --python_out=$(STUBS) --pyi_out=$(STUBS)

docs: setup
	$(PY) docs/generate.py

# Strict: a link that leads nowhere, and a page that nothing names, is an error.
site: setup
	$(PY) -m $(PIP_INSTALL) -c constraints.txt 'dfl[docs]'
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

screenshots: setup
	$(PY) -m $(PIP_INSTALL) -c constraints.txt 'dfl[browser]'
	PYTHONPATH=tests/engines:$$PYTHONPATH $(PY) docs/screenshots.py

clean:
	rm -rf $(VENV) build site dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
