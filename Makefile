# The only door. `make` alone lists what it opens; every text after ## is help.

PYTHON ?= python3
RECIPE ?= recipes/nano.toml
# The build of PyTorch. PyPI's own for Linux is a CUDA build of several GB; the README says how to take the CPU one.
TORCH ?= torch==2.13.0
# The environment of the engines that ours is compared with: outside the repository, llama.cpp is compiled in it.
PEERS ?= $(HOME)/.cache/mothertongue/peers/environment

VENV := .venv
BIN := $(VENV)/bin
ALONE := build/alone
# Another TORCH is another installation.
INSTALLED := $(VENV)/installed-$(shell echo '$(TORCH)' | cksum | cut -d ' ' -f 1)
PACKAGES := -e packages/arbiter -e packages/runtime -e packages/trainer -e packages/export
TEST_TOOLS := "pytest>=8.3,<10" "pytest-timeout>=2.3,<3" "pytest-xdist>=3.6,<4" "hypothesis>=6.110,<7"
TOOLS := $(TEST_TOOLS) "ruff>=0.17,<0.18" "mypy>=2.0,<3" \
	"accelerate>=1.1,<2" "jax>=0.4.35,<0.12" "onnxruntime-genai>=0.18,<0.19" "xllamacpp>=2026.10,<2027"
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help chat train export test alone check format smoke docs bench bench-arbiter bench-peers clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  RECIPE=recipes/NAME.toml chooses a recipe (default $(RECIPE)); TORCH=... a build of PyTorch."

chat: $(INSTALLED) ## text -> tokenizer -> audited training -> int8 bundle with proof -> chat
	@$(BIN)/mothertongue build $(RECIPE) --chat

train: $(INSTALLED) ## the same, up to the trained and evaluated checkpoint
	@$(BIN)/mothertongue build $(RECIPE) --until evaluate

export: $(INSTALLED) ## the same, up to the proved bundle
	@$(BIN)/mothertongue build $(RECIPE)

test: $(VENV)/tools ## every test, from nothing
	@$(BIN)/python -m pytest -q -n 2 tests

alone: $(VENV)/tools ## the runtime's wheel without all the rest: its own tests in an environment of its own
	@rm -rf $(ALONE) && $(PYTHON) -m venv $(ALONE)
	@$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps -w $(ALONE)/wheel packages/runtime
	@$(ALONE)/bin/python -m pip --disable-pip-version-check install --quiet $(ALONE)/wheel/*.whl $(TEST_TOOLS)
	@! $(ALONE)/bin/python -c 'import torch' 2>/dev/null
	@$(ALONE)/bin/python -m pytest -q -n 2 tests/runtime

check: $(VENV)/tools ## lint, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/tools ## rewrite the source in the house style
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

smoke: $(INSTALLED) ## the whole path in seconds, with a toy model
	@$(BIN)/mothertongue build recipes/smoke.toml
	@echo 'নদী শব্দের অর্থ কী?' | $(BIN)/mothertongue chat bundles/smoke --json

docs: $(INSTALLED) ## keep what runs/nano measured and write it into README and docs
	@test ! -f runs/nano/exam.json || $(BIN)/python benchmarks/record.py nano
	@$(BIN)/python benchmarks/figures.py

bench: $(INSTALLED) ## speed of the bundle on this machine
	@$(BIN)/mothertongue build $(RECIPE)
	@$(BIN)/mothertongue bench "bundles/$$(sed -n 's/^name = "\(.*\)"$$/\1/p' $(RECIPE))"

bench-arbiter: $(INSTALLED) ## what the arbiter finds in the fault zoo, and what others find
	@OMP_NUM_THREADS=1 PYTHONPATH=benchmarks $(BIN)/python -m faults
	@$(BIN)/python benchmarks/figures.py

bench-peers: $(INSTALLED) ## our engine beside llama.cpp, onnxruntime-genai and CTranslate2, one checkpoint, one run
	@test -x "$(PEERS)/bin/python" || $(BIN)/python -m venv "$(PEERS)"
	@"$(PEERS)/bin/python" -m pip --disable-pip-version-check install --quiet -r benchmarks/peers/requirements.txt
	@PYTHONPATH=benchmarks $(BIN)/python -m peers --peers "$(PEERS)" $(if $(MODELS),--models "$(MODELS)") \
	  $(if $(CHECKPOINT),--checkpoint "$(CHECKPOINT)") $(if $(BUNDLE),--bundle "$(BUNDLE)")
	@$(BIN)/python benchmarks/figures.py

clean: ## remove the environment and everything that can be made again (asks first)
	@printf 'Remove .venv, runs/ and bundles/? [y/N] '; read answer; \
	  if [ "$$answer" = y ]; then rm -rf $(VENV) runs bundles; else echo 'Nothing removed.'; fi

$(INSTALLED): Makefile $(wildcard packages/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Mothertongue needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true). Try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo 'Installing into $(VENV)/ (once; some minutes, mostly PyTorch) ...'
	@$(PIP) "$(TORCH)" $(PACKAGES)
	@touch $@

$(VENV)/tools: $(INSTALLED)
	@$(PIP) $(TOOLS)
	@touch $@
