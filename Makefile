# make run    set up, start the daemon with the embedded model, ask it one question, keep serving
# make test   set up and pass the tests
#
# make test-gpu, sanitize-gpu, bench-gpu    on a machine with a card, with the packages that it has
#
# GPU=1 installs torch with CUDA from PyPI; otherwise the CPU build is used. PYTHON, VENV, PROFILE and PORT can be set.
PYTHON ?= python3
VENV ?= .venv
GPU ?= 0
PROFILE ?= tiny
PORT ?= 8080
TORCH ?= torch==2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check
MODEL ?= synthetic:qwen3.8-27b
ON_DEVICE := PYTHONPATH=.$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON)
NINFERD := $(ON_DEVICE) -c 'import sys; from ninferd.cli import main; sys.exit(main())'
EXTRA := $(if $(filter 1,$(GPU)),gpu,media)

.PHONY: run test lint test-gpu sanitize-gpu bench bench-gpu generated wheel clean

run: $(VENV)/.run
	$(BIN)/python tools/first_run.py --profile $(PROFILE) --port $(PORT)

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# On a machine with a card and its own Python packages: nothing is installed, nothing is downloaded.
test-gpu:
	$(ON_DEVICE) -m pytest tests/gpu -m gpu -p no:cacheprovider

bench: $(VENV)/.dev
	$(BIN)/python bench/decode_cpu.py

# Every kernel under compute-sanitizer, which comes with CUDA's toolkit.
sanitize-gpu:
	$(ON_DEVICE) -m tools.sanitize_gpu

# As test-gpu; ninferd itself also needs msgspec, pydantic and pydantic-settings there, on the PYTHONPATH if need be.
# First shares of ceilings, then kernels beside cuBLAS and torch's attention.
bench-gpu:
	$(NINFERD) bench kernels --model $(MODEL)
	$(NINFERD) bench decode --model $(MODEL) --kv-dtypes nvfp4
	$(NINFERD) bench prefill --model $(MODEL) --kv-dtypes nvfp4
	$(ON_DEVICE) -m bench.cuda_linear
	$(ON_DEVICE) -m bench.cuda_attention
	$(ON_DEVICE) -m bench.cuda_prefill_attention
	$(ON_DEVICE) -m bench.cuda_gated_delta

# Files made from the configuration schema; a test holds them to it.
generated: $(VENV)/.run
	$(BIN)/python -m ninferd.config.render etc >etc/ninferd.toml
	$(BIN)/python -m ninferd.config.render docs >docs/configuration.md

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel

$(VENV)/bin/python:
	$(PYTHON) tools/bootstrap_venv.py $(VENV)

# torch first: its CPU build lives on an index of its own, and where that is out of reach PyPI's build serves.
$(VENV)/.torch: $(VENV)/bin/python
ifeq ($(GPU),1)
	$(PIP) install '$(TORCH)'
else
	$(PIP) install --quiet --retries 0 --timeout 15 --index-url $(TORCH_CPU_INDEX) '$(TORCH)' 2>/dev/null \
		|| { echo 'the CPU index of torch is out of reach: installing from PyPI'; $(PIP) install '$(TORCH)'; }
endif
	touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --use-pep517 -e '.[$(EXTRA)]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install --quiet -e '.[$(EXTRA),dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
