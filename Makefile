# make demo    prune, compress and multiply the matrices of a real checkpoint
# make test    run the test suite
# make docs    build the documentation, warnings as errors
#
# Each makes the environment .venv first.  PYTHON=python3.12 picks the interpreter,
# EXTRAS=torch,jax adds optional parts.  Where an NVIDIA driver is found, the CuPy
# that fits it is added by itself.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?=
# Two tests at a time: kernels of the CPU have threads of their own.
PYTEST_ARGS ?= -n 2 --dist worksteal

driver := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
	| head -n 1 | cut -d . -f 1)
cuda := $(shell [ "$(driver)" -ge 580 ] 2>/dev/null && echo cuda13 \
	|| { [ "$(driver)" -ge 525 ] 2>/dev/null && echo cuda12; })

comma := ,
empty :=
commas = $(subst $(empty) $(empty),$(comma),$(strip $(1)))
bin := $(VENV)/bin

.PHONY: demo test docs clean

demo: $(VENV)/.core
	$(bin)/python -m sparse24 demo

test: $(VENV)/.test
	$(bin)/pytest $(PYTEST_ARGS)

docs: $(VENV)/.docs
	$(bin)/sphinx-build -E -W --keep-going -q -j 2 -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build docs/gallery docs/reference/generated

# The environments are one folder with more or fewer extras in it.
$(VENV)/.core: extras := $(call commas,$(cuda) $(EXTRAS))
$(VENV)/.test: extras := $(call commas,test $(cuda) $(EXTRAS))
$(VENV)/.docs: extras := $(call commas,docs $(cuda) $(EXTRAS))

$(VENV)/.core $(VENV)/.test $(VENV)/.docs: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sparse24 needs Python 3.11 or later; try make PYTHON=python3.12")'
	@echo "installing sparse24 into $(VENV) (extras: $(or $(extras),none))"
	@test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	@$(bin)/python -m pip install --quiet -e '.$(if $(extras),[$(extras)])'
	@touch $@
