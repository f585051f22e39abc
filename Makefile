# Everything runs in .venv, which `make setup` makes with nothing but Python 3.11 or newer.
# PYTHON=python3.12 chooses the interpreter, JOBS=4 how many tests run at a time, TESTS=tests/test_docs.py which.

VENV = .venv
PY = $(VENV)/bin/python
INSTALLED = $(VENV)/installed
STUBS = peer/network/wire/stubs
PIP_INSTALL = pip install --quiet --disable-pip-version-check -c constraints.txt
PROTOC = $(PY) -m grpc_tools.protoc -Iproto dfl/v1/peer.proto
JOBS = $$(n=`nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2`; [ "$$n" -le 8 ] || n=8; echo "$$n")
TESTS = tests

.PHONY: setup demo test check bench chaos fuzz proto docs clean

setup: $(INSTALLED)

# The stamp is written last: an installation that was interrupted is done again.
$(INSTALLED): constraints.txt pyproject.toml
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
	$(PY) -m $(PIP_INSTALL) pip setuptools
	$(PY) -m $(PIP_INSTALL) --no-build-isolation -e '.[test]'
	@touch $(INSTALLED)

demo: setup
	$(VENV)/bin/dfl-launch run examples/demo.yaml --fresh

test: setup
	$(PY) -m pytest -n $(JOBS) --dist worksteal $(TESTS)

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

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
