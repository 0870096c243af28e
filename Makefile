# Every target makes .venv and installs the tested versions when pyproject.toml or constraints.txt is newer.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
CORE := $(VENV)/.core-installed
ALL := $(VENV)/.all-installed

.PHONY: demo test lab full-size notebooks figures clean
.DEFAULT_GOAL := demo

demo: $(CORE)  ## one character, three scenes: writes figures/demo.png
	$(BIN)/snapref demo

test: $(ALL)  ## style, every test, every notebook
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

lab: $(ALL)  ## JupyterLab on the first notebook
	$(BIN)/jupyter lab notebooks/00_start_here.ipynb

full-size: $(CORE)  ## random files of Anima's full size, loaded and run on this CPU: seconds and peak memory
	$(BIN)/snapref bench full-size

notebooks: $(ALL)  ## run notebooks/src and publish the results; NAMES="00 02" picks some
	$(BIN)/python -m snapref.lab.publish $(NAMES)

# One thread, as the times in the tables say.
figures: export OMP_NUM_THREADS = 1
figures: $(CORE)  ## every marked table and picture of the README, measured and drawn anew
	$(BIN)/snapref evaluate all --n 200
	$(BIN)/snapref evaluate controls --n 64
	$(BIN)/snapref evaluate thinning --n 48
	$(BIN)/snapref demo

# torch by itself and first: the exact version decides which build pip takes.
$(CORE): pyproject.toml constraints.txt
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing the tested versions into $(VENV) (once, about three minutes) ..."
	$(INSTALL) torch==2.13.0
	$(INSTALL) --constraint constraints.txt --editable .
	@touch $@

$(ALL): $(CORE)
	@echo "Installing the notebook and test tools into $(VENV) (once) ..."
	$(INSTALL) --constraint constraints.txt --editable '.[lab,test]'
	@touch $@

clean:  ## remove the environment
	rm -rf $(VENV)
