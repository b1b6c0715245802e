# repcap: `make` lists the targets. Everything installs into .venv, or into the active virtual or conda environment.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

PROFILE ?= cpu
ENV := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX),.venv)
BIN := $(ENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
# A kernel of the user's own named python3 must not stand in for this environment's.
export JUPYTER_PREFER_ENV_PATH := 1
export PYTHONHASHSEED := 0
export PATH := $(abspath $(BIN)):$(PATH)
# Notebooks run in their own folder: relative settings are meant from here.
ifdef REPCAP_MODELS
export REPCAP_MODELS := $(abspath $(REPCAP_MODELS))
endif
ifdef REPCAP_REFERENCE
export REPCAP_REFERENCE := $(abspath $(REPCAP_REFERENCE))
endif

# The stamp lies in the environment and is named after this checkout: a new environment or a moved checkout installs afresh.
READY := $(ENV)/.repcap-$(firstword $(shell printf %s "$(CURDIR)" | cksum))
OUT := build/executed

NOTEBOOKS := $(sort $(basename $(notdir $(wildcard notebooks/[0-9][0-9]_*.ipynb))))
EXECUTED := $(NOTEBOOKS:%=$(OUT)/%.ipynb)
REPORT := $(OUT)/00_report.ipynb
PROFILE_FILE := $(if $(filter %.yaml %.yml,$(PROFILE)),$(PROFILE),notebooks/profiles/$(PROFILE).yaml)
SOURCES := $(wildcard repcap_utils/*.py repcap_utils/*.mplstyle repcap_utils/kernels/*.py)
INPUTS := data/models.yaml data/published/models.csv data/published/claims.csv \
  $(filter-out data/survey/epsilon.csv,$(wildcard data/survey/*.csv)) $(wildcard data/sweeps/*.csv)

.PHONY: FORCE help all test bench models sweep survey model reference site lab refresh lock clean env

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PROFILE=cpu|paper|FILE.yaml sets the notebooks' parameters (now: $(PROFILE)); the environment is $(ENV)"

all: $(PROFILE_FILE) $(OUT)/readme.stamp ## run every notebook, redraw every figure, update the README's table of verdicts

test: $(READY) build/models.stamp build/reference.stamp ## lint, unit tests, and the notebooks' stored outputs against a fresh run
	ruff check .
	ruff format --check .
	pytest
	pytest --nbval --nbval-current-env --nbval-cell-timeout=900 --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks

bench: $(READY) ## measure speed and memory side by side with a plain version (keep the machine otherwise idle)
	python benchmarks/similarity.py
	python benchmarks/packing.py
	python benchmarks/epsilon.py

models: $(READY) ## fetch the default models' weights
	repcap models fetch

reference: $(READY) ## fetch the paper's two published sweeps, verified by sha256
	repcap reference

sweep: $(READY) ## compute missing cells of data/sweeps (resumable; cells by PROFILE; on dask workers if DASK_SCHEDULER_ADDRESS is set)
	repcap sweep --profile $(if $(filter %.yaml %.yml,$(PROFILE)),cpu,$(PROFILE))

survey: $(READY) build/models.stamp ## measure the default models and the paper's 45 from the hub, LOCAL=1 the default ones alone (resumable; on dask workers as above)
	repcap survey $(if $(LOCAL),--local)

# Such a run writes below build/model, in a copy of the stores: the study's own rows, records and figures stay as they are.
model: | $(READY) ## report on a model of your own in build/model: MODEL=name, path or hub id (owner/name)
	@test -n '$(MODEL)' || { echo "error: name the model: make model MODEL=path/to/model.safetensors (or owner/name)" >&2; exit 1; }
	@set -e; source='$(MODEL)'; name=$$(printf %s "$$source" | tr -c 'A-Za-z0-9._-' '-'); \
	if test -e "$$source"; then source=$$(realpath "$$source"); name=$$(basename "$$source"); fi; \
	export REPCAP_OUTPUT="$(CURDIR)/build/model/$$name"; \
	rm -rf "$$REPCAP_OUTPUT"; mkdir -p "$$REPCAP_OUTPUT/data"; cp -R data/survey "$$REPCAP_OUTPUT/data"; \
	repcap epsilon "$$source" --keep; \
	python -c 'import json, sys; print(json.dumps({"models": sys.argv[1:]}))' "$$source" > "$$REPCAP_OUTPUT/parameters.yaml"; \
	papermill --no-progress-bar --log-level ERROR --cwd notebooks -f "$$REPCAP_OUTPUT/parameters.yaml" \
	  notebooks/01_epsilon_estimation.ipynb "$$REPCAP_OUTPUT/$$name.ipynb" 2> "$$REPCAP_OUTPUT/log" || \
	  { grep -v '^ *$$' "$$REPCAP_OUTPUT/log" | tail -n 1 >&2; \
	    echo "error: the notebook failed; read it in build/model/$$name/$$name.ipynb" >&2; exit 1; }; \
	jupyter nbconvert --log-level=ERROR --to html --output-dir build/model "$$REPCAP_OUTPUT/$$name.ipynb"; \
	echo "build/model/$$name.html"

site: $(READY) ## the notebooks as HTML pages in build/site
	jupyter nbconvert --log-level=ERROR --to html --output-dir build/site notebooks/*.ipynb

lab: $(READY) ## open the notebooks in JupyterLab
	jupyter lab notebooks

refresh: $(READY) build/models.stamp build/reference.stamp ## re-execute the notebooks in place: what readers see and nbval compares
	set -e; for name in $(filter-out 00_report,$(NOTEBOOKS)) 00_report; do \
	  jupyter nbconvert --log-level=ERROR --to notebook --inplace --execute --ExecutePreprocessor.record_timing=False \
	    --ExecutePreprocessor.timeout=1800 notebooks/$$name.ipynb; done
	repcap report

# soupsieve 3.0.2 and later refuse Python 3.11.0 to 3.11.4, which Debian 12 has
lock: ## resolve the dependencies afresh into requirements.lock
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet torch==2.13.0 triton==3.7.1 'soupsieve<3' '.[notebooks,dev]' hatchling editables
	{ echo "# Exact versions of everything the study runs on; made by \`make lock\`."; \
	  build/lock/bin/pip freeze --exclude repcap | sed 's/+cpu//; s/^triton==.*/& ; platform_system == "Linux"/' | grep -v ' @ '; } > build/requirements.lock
	mv build/requirements.lock requirements.lock

clean: ## remove build/ and the tool caches; weights, data and figures stay
	rm -rf build .pytest_cache .ruff_cache .hypothesis

env: $(READY) ## set up the environment alone

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is missing or older than Python 3.11; install it, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
ifeq ($(ENV),.venv)
	@# a half-made, foreign or moved environment cannot be used: make it afresh
	@.venv/bin/pip --version 2>/dev/null | grep -qF "$(CURDIR)/.venv" || $(PYTHON) -m venv --clear .venv || \
	  { echo "error: no virtual environment could be made; on Debian and Ubuntu install python3-venv" >&2; exit 1; }
else
	@test -x "$(BIN)/python" || { echo "error: the active environment $(ENV) has no bin/python; deactivate it" >&2; exit 1; }
endif
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Weights that cannot be had are a visible skip, tried again next time; the study then runs from the committed statistics.
build/models.stamp: data/models.yaml | $(READY)
	@mkdir -p build
	@if repcap models fetch; then touch $@; else echo "going on with the committed statistics"; fi

# The published sweeps are tried once; `make reference` tries again and insists.
build/reference.stamp: | $(READY)
	@mkdir -p build
	@repcap reference --optional
	@touch $@

# What the notebooks depend on besides files of this repository: the profile, and which weights and published sweeps are here.
build/inputs.txt: FORCE | build/models.stamp build/reference.stamp
	@{ echo "$(PROFILE)"; cksum < "$(PROFILE_FILE)"; \
	  find -L "$(or $(REPCAP_MODELS),data/models)" -type f -size +99k -printf '%p %s\n' 2>/dev/null | sort; \
	  find -L "$(or $(REPCAP_REFERENCE),data/reference)" -name '*_packing.json' -printf '%p %s\n' 2>/dev/null | sort; } > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

FORCE:

# A notebook appears in $(OUT) only when it has run to its end; one that fails stays readable in build/failed.
$(EXECUTED): $(OUT)/%.ipynb: notebooks/%.ipynb $(SOURCES) $(INPUTS) build/inputs.txt | $(READY)
	@mkdir -p $(OUT) build/failed build/running
	@repcap profile "$(PROFILE)" $* > build/running/$*.$$PPID.yaml
	@echo "running notebooks/$*.ipynb"
	@papermill --no-progress-bar --log-level ERROR --cwd notebooks -f build/running/$*.$$PPID.yaml \
	  notebooks/$*.ipynb build/running/$*.$$PPID.ipynb 2> build/running/$*.$$PPID.log || \
	  { grep -v '^ *$$' build/running/$*.$$PPID.log | tail -n 1 >&2; mv build/running/$*.$$PPID.ipynb build/failed/$*.ipynb 2>/dev/null && \
	    echo "error: notebooks/$*.ipynb failed; read it in build/failed/$*.ipynb" >&2 || \
	    echo "error: notebooks/$*.ipynb did not start; see build/running/$*.$$PPID.log" >&2; exit 1; }
	@rm -f build/failed/$*.ipynb build/running/$*.$$PPID.log build/running/$*.$$PPID.yaml
	@mv build/running/$*.$$PPID.ipynb $@

# Which notebooks read what others write.
$(OUT)/05_model_survey.ipynb $(OUT)/06_scaling_trends.ipynb $(OUT)/08_linear_access.ipynb $(OUT)/09_two_classes.ipynb: $(OUT)/01_epsilon_estimation.ipynb data/survey/epsilon.csv
$(REPORT): $(filter-out $(REPORT),$(EXECUTED))

$(OUT)/readme.stamp: $(REPORT)
	repcap report
	@touch $@
