# Rank by Rank. All paths are relative, so the checkout may stand at a path with a space.
# Programs of .venv are called as `python -m`: their own first lines do not survive a move.

PYTHON ?=
ARGS ?=
RUN = .venv/bin/python tools/within.py

# Two starts of two ranks serve all cases of the backend; lessons 00 and 01 start the clusters.
QUICK = tests/setup/test_style.py tests/setup/test_proofreading.py tests/setup/test_types.py \
    tests/setup/test_imports.py tests/training tests/torch_mpi4py/test_board.py \
    tests/torch_mpi4py/test_diagnosis.py tests/torch_mpi4py/test_hang_report.py \
    tests/torch_mpi4py/test_waits.py tests/torch_mpi4py/test_battery.py \
    tests/torch_mpi4py/test_large.py tests/teaching/test_checking.py tests/teaching/test_mistakes.py \
    tests/lessons/test_notebooks.py \
    -k "not test_battery and not test_large and not test_notebooks or openmpi-2 or 00_start or 01_"

.PHONY: help setup lab test quick test-cluster test-others test-torch fuzz mutants doctor notebooks slides site bench release lock clean
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: ## install the course into .venv (lab and test do it by themselves)
	@PYTHON="$(PYTHON)" sh tools/install.sh

lab: setup ## open JupyterLab on lesson 00; ARGS="--no-browser --port 8899" goes to JupyterLab
	@$(RUN) -m course_lib.command lab $(ARGS)

test: setup ## run every test, lesson and style check; ARGS="tests/torch_mpi4py -x" goes to pytest
ifneq ($(strip $(ARGS)),)
	@$(RUN) -m pytest $(ARGS)
else
	@status=0; by="--dist loadfile"; slow="--durations=15 --durations-min=5"; \
	    failed() { [ $$1 != 2 ] || exit 2; status=$$1; }; \
	    $(RUN) -m pytest $$slow -n 4 $$by -m "not clusters and not alone and not hosts and not sites" || failed $$?; \
	    $(RUN) -m pytest $$slow -n 3 $$by -m clusters || failed $$?; \
	    $(RUN) -m pytest $$slow -m alone || failed $$?; exit $$status
endif

quick: setup ## the tests to run while you work: style, spelling, types, units, two ranks, lessons 00 and 01
	@$(RUN) -m pytest -n 2 --dist loadfile $(QUICK) $(ARGS)

test-cluster: setup ## several hosts, Slurm, other MPIs, JupyterHub (as root; installs what it needs)
	@status=0; $(RUN) -m tests.hosts.testbed --pytest 2 -- -m hosts tests/hosts $(ARGS) || status=$$?; \
	    $(RUN) -m pytest -n 2 --dist loadfile tests/sites tests/hub $(ARGS) || status=$$?; exit $$status

test-others: setup ## Accelerate, Lightning and torchmetrics on the backend (installs them aside)
	@$(RUN) -m tests.torch_mpi4py.borrowed -m pytest tests/torch_mpi4py/test_other_libraries.py $(ARGS)

test-torch: setup ## PyTorch's own distributed tests on the backend; ARGS="--backend gloo"
	@$(RUN) -m tests.torch_mpi4py.borrowed -m tests.torch_mpi4py.torch_suite $(ARGS)

fuzz: setup ## run random programs on the backend and on gloo; ARGS="--minutes 180 --seed 7"
	@$(RUN) -m tests.torch_mpi4py.fuzz $(ARGS)

mutants: setup ## change right answers as learners might, and see what the checks let through; ARGS="--lesson 05"
	@$(RUN) -m tools.mutants $(ARGS)

doctor: setup ## say what on this machine would fail, and how to fix it; ARGS=--json
	@$(RUN) -m course_lib.doctor $(ARGS)

notebooks: setup ## rebuild and execute the lessons whose source changed
	@$(RUN) -m tools.build_notebooks $(ARGS)

slides: setup ## build the decks whose source changed (needs Node.js); ARGS=--pdf also PDFs
	@$(RUN) -m tools.build_slides $(ARGS)

site: setup ## build the site of lessons, slides and reference: site/build/html (needs Node.js)
	@$(RUN) -m tools.build_site $(ARGS)

bench: setup ## measure every promised number; ARGS=--all also all lessons and a fresh clone
	@$(RUN) -m benchmarks $(ARGS)

release: ## say whether a tag may be released, and write its notes; ARGS="--tag v0.1.0 --notes notes.md"
	@python3 -m tools.release $(ARGS)

lock: setup ## choose the versions in requirements.lock anew (needs uv)
	@$(RUN) tools/lock.py

clean: ## remove .venv and everything else made here, except workspace/ and downloaded data
	@sh tools/clean.sh
