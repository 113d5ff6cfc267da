# Thin on purpose: every target shows the commands it runs, and each can be typed by hand.
# Settings: PYTHON=python3.12 (which interpreter .venv is made with), ARGS="-e baseline_remeasure=true" (for the playbook).

SHELL := /bin/bash
RUN := PATH="$$PWD/.venv/bin:$$PATH"
ARGS ?=
# Ansible refuses any other encoding; a machine without one set, or with LC_ALL=C, would stop here.
export LC_ALL := C.UTF-8

.PHONY: help setup setup-test baseline test lint sanity unit integration docs slow clean

help:  ## Say what there is (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make or update .venv with what the playbooks need
	scripts/setup.sh runtime

setup-test:  ## Make or update .venv with the test tools, too
	scripts/setup.sh test

baseline: setup  ## Run the main job on this machine: a real engine, a real small model, a baseline
	$(RUN) ansible-playbook playbooks/deploy_baseline.yml $(ARGS)

test: setup-test  ## Everything but the slow tests: lint, sanity, unit, integration, docs
	$(RUN) python scripts/check.py integration sanity unit lint docs

lint: setup-test  ## ansible-lint, yamllint, ruff, mypy, shellcheck, changelog
	$(RUN) python scripts/check.py lint

sanity: setup-test  ## ansible-test sanity, on a copy of the work tree
	$(RUN) python scripts/check.py sanity

unit: setup-test  ## The pure tests: seconds
	$(RUN) python scripts/check.py unit

integration: setup-test  ## Tests with real processes and engines, but the slow ones
	$(RUN) python scripts/check.py integration

docs: setup-test  ## Links of the docs, documentation of the modules
	$(RUN) python scripts/check.py docs

slow: setup-test  ## The slow tests (vLLM on the CPU and so on)
	$(RUN) python scripts/check.py slow

clean:  ## Remove what set-up and checks left here (not records, not servers: those are for playbooks/teardown.yml)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .ansible dist tests/output
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
