# Everything runs from .venv, which is made from nothing but python3 (with venv) and make.
# An editable install: a change of code needs no reinstall, a change of setup.cfg or pyproject.toml brings one.

PYTHON ?= python3
ARGS ?=
SEED ?= 1
QUICK ?=
ITEMS ?= 100000
KILLS ?= 20
CHANGES ?= 1000
MINUTES ?= 40
FAULTS ?= 12
DELIVERY ?= exactly_once at_least_once
STORAGE ?= journal
EXAMPLES ?= 2000
SECONDS ?=
RUNS ?=
TARGETS ?=
JOBS ?= 1
EXTENSION ?= require
WHEEL ?=

# Those that take their sample from tests/sample.py; of recorded journals `make damage` does.
EVERY_PLACE := tests/journal/test_recorded.py tests/journal/test_replay.py tests/storage/test_crashes.py
EVERY_PLACE += tests/storage/scroll/test_crashes.py tests/tools/test_convert_resumed.py

VENV := .venv
POSTGRES := examples/storage-postgres
PIP := $(VENV)/bin/pip --disable-pip-version-check install --quiet
# Who works on the code builds the extension when it is wanted, with `make compiled`, and not at each install.
PIP_PURE := KESTREL_EXTENSION=none $(PIP)

# One stamp for each set of things installed, so that `make run` brings no test tools.
CREATED := $(VENV)/.created
SERVER := $(VENV)/.server
TESTS := $(VENV)/.tests
LIBMEMCACHED := $(VENV)/.libmemcached
CHECKS := $(VENV)/.checks
FUZZ := $(VENV)/.fuzz
RELEASE := $(VENV)/.release

.DEFAULT_GOAL := help
.PHONY: help run cluster test check compiled torture kill-restart moves leases convert-kills database-kills streams membership zookeeper-kills soak histories every-place damage hazards fuzz abuse benchmark bench docs dist smoke clean
.NOTPARALLEL:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(SERVER) ## start the server in the foreground, its queues under ./var/ (ARGS="--memcache tcp:22134:interface=127.0.0.1")
	@$(VENV)/bin/twistd --nodaemon --pidfile= kestrel --config tap-configs/development.toml $(ARGS)

# With the test tools, since PySpark has a ZooKeeper.
cluster: $(TESTS) ## start three servers that announce themselves in a ZooKeeper, under ./var/cluster (ARGS="--servers 5"; docs/cluster.md)
	@$(VENV)/bin/python examples/cluster/run.py $(ARGS)

# A process for each processor; whoever is done first takes over from the others what they have not begun.
test: $(TESTS) $(LIBMEMCACHED) ## run the tests (ARGS="-k name" is passed to pytest; "-n 0" for one process)
	@$(VENV)/bin/python -m pytest -n logical --dist worksteal $(ARGS)

check: $(CHECKS) ## run ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# In the checkout. An installation builds it where it can; here it must be possible.
compiled: $(CHECKS) ## build the extension: the modules of the hot path, compiled (needs a C compiler; takes a minute)
	KESTREL_EXTENSION=require $(VENV)/bin/python setup.py --quiet build_ext --inplace

torture: $(TESTS) ## clients of all protocols, while processes, networks, disks and clocks fail, and count (SEED=1 SECONDS=120 STORAGE=scroll)
	@$(VENV)/bin/python -m tests.torture.torture --storage $(STORAGE) --seed $(SEED) --seconds $(or $(SECONDS),120) $(ARGS)

kill-restart: $(TESTS) ## kill -9 a server under load again and again, and count (SEED=1 ITEMS=100000 KILLS=20 STORAGE=scroll|postgres)
	@$(VENV)/bin/python -m tests.torture.kill_restart --storage $(STORAGE) --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

moves: $(TESTS) ## kill -9 a server while items expire and fail from queue to queue, and count (SEED=1 ITEMS=20000 KILLS=10)
	@$(VENV)/bin/python -m tests.torture.moves --storage $(STORAGE) --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

leases: $(TESTS) ## kill -9 a server while thrift clients hold items by number, and count (SEED=1 ITEMS=100000 KILLS=20 STORAGE=scroll|postgres)
	@$(VENV)/bin/python -m tests.torture.leases --storage $(STORAGE) --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

convert-kills: $(TESTS) ## kill -9 kestrel-convert on its way to scrolls and back, and compare (SEED=1 ITEMS=100000 KILLS=20)
	@$(VENV)/bin/python -m tests.torture.convert --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

database-kills: $(TESTS) ## kill -9 the server and the PostgreSQL under it in turn, under load, and count (SEED=1 ITEMS=100000 KILLS=20)
	@$(VENV)/bin/python -m tests.torture.database --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

streams: $(TESTS) ## kill drivers, executors, servers and connections of streams of Spark, and count (SEED=1 ITEMS=100000 FAULTS=12 DELIVERY=exactly_once)
	@for each in $(DELIVERY); do \
	    $(VENV)/bin/python -m tests.torture.streams --delivery $$each --seed $(SEED) --items $(ITEMS) --faults $(FAULTS) $(ARGS) || exit 1; \
	done

membership: $(TESTS) ## change statuses of servers, end their sessions, kill them and ZooKeeper, and look at the server sets (SEED=1 CHANGES=1000)
	@$(VENV)/bin/python -m tests.torture.membership --seed $(SEED) --changes $(CHANGES)

zookeeper-kills: $(TESTS) ## kill -9 the ZooKeeper of a server under load, and see how much clients notice (SEED=1 KILLS=20)
	@$(VENV)/bin/python -m tests.torture.zookeeper_kills --seed $(SEED) --kills $(KILLS)

soak: $(TESTS) ## work a server at a steady pace, and see whether anything grows (SEED=1 MINUTES=40 STORAGE=scroll, ARGS="--picture soak.svg")
	@$(VENV)/bin/python -m tests.torture.soak --storage $(STORAGE) --seed $(SEED) --minutes $(MINUTES) $(ARGS)

histories: $(TESTS) ## thousands of random histories of queues with tiny limits, over restarts and crashes (SEED=1 EXAMPLES=2000)
	@$(VENV)/bin/python -m tests.torture.history --seed $(SEED) --examples $(EXAMPLES)

every-place: $(TESTS) ## the tests that try a sample of bytes and of operations of the disk try all of them (takes minutes)
	@KESTREL_EVERY_PLACE=1 $(VENV)/bin/python -m pytest -n logical --dist worksteal $(EVERY_PLACE) $(ARGS)

damage: $(TESTS) ## damage every byte of recorded journals, and every bit of whole queue folders, and start over each (ARGS="--case NAME" or ARGS="--scene NAME": only that one)
	@$(if $(findstring --scene,$(ARGS)),,$(VENV)/bin/python -m tests.torture.damage --every-byte $(ARGS))
	@$(if $(findstring --case,$(ARGS)),,$(VENV)/bin/python -m tests.torture.damage_matrix --every-byte $(ARGS))

hazards: $(TESTS) ## damage while the server is down, strange names, unread replies, no inodes (SEED=1, ARGS="--hazard files")
	@$(VENV)/bin/python -m tests.torture.hazards --seed $(SEED) $(ARGS)

fuzz: $(FUZZ) ## give parsers, sessions and file readers bytes that nobody thought of (SECONDS=60 or RUNS=1000, SEED=1 TARGETS="memcache text" JOBS=1)
	@$(VENV)/bin/python -m tests.fuzz $(TARGETS) --seconds $(or $(SECONDS),60) $(if $(RUNS),--runs $(RUNS)) --seed $(SEED) --jobs $(JOBS)

benchmark: $(TESTS) ## measure speed, memory and smoothness (SEED=1, ARGS="--short", ARGS=replay; docs/performance.md)
	@$(VENV)/bin/python -m benchmarks --seed $(SEED) $(ARGS)

bench: $(TESTS) ## compare with beanstalkd, Redis and memcached (QUICK=1, SEED=1, ARGS="--picture bench.svg"; docs/performance.md)
	@$(VENV)/bin/python -m benchmarks.peers --seed $(SEED) $(if $(QUICK),--quick) --results build/bench.json $(ARGS)

abuse: $(TESTS) ## clients that mean harm, and how much other clients notice (SECONDS=10 for each, SEED=1, ARGS="garbage"; docs/reliability.md)
	@$(VENV)/bin/python -m benchmarks.abuse --seed $(SEED) --seconds $(or $(SECONDS),10) $(ARGS)

# With the test tools, which the API of what tests are made of is read with.
docs: $(TESTS) ## make the documentation a site, in build/docs/html (ARGS="-E" reads every page again)
	@$(VENV)/bin/python -m sphinx -W --keep-going -q -j auto -c docs -d build/docs/pages $(ARGS) . build/docs/html
	@echo "build/docs/html/index.html is the documentation."

# Without the extension it would be a wheel for every machine, which pip would prefer to building the extension.
dist: $(RELEASE) ## build the source distribution and a wheel for this machine into dist/, and check them (EXTENSION=none for a pure wheel)
	rm -rf dist
	KESTREL_EXTENSION=$(EXTENSION) $(VENV)/bin/python -m build
	$(VENV)/bin/twine check --strict dist/*

smoke: $(RELEASE) ## install a wheel in an empty environment elsewhere, and try every command (WHEEL=dist/NAME.whl; else a pure one is built)
ifeq ($(WHEEL),)
	rm -rf build/smoke
	KESTREL_EXTENSION=none $(VENV)/bin/python -m build --outdir build/smoke
endif
	@$(VENV)/bin/python -I tests/release/smoke.py $(or $(WHEEL),build/smoke/*.whl) $(ARGS)

clean: ## remove what make made (.venv, build products, caches), but not ./var/
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache _trial_temp*
	rm -rf $(POSTGRES)/build $(POSTGRES)/*.egg-info
	rm -f twisted/plugins/dropin.cache *.so kestrel/compiled.json
	find kestrel -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@command -v $(PYTHON) >/dev/null || \
	    { echo "There is no $(PYTHON) here. Install Python 3.11 or later (Debian: apt-get install python3 python3-venv)."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is older than 3.11. Name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) has no venv module. Install it (Debian: apt-get install python3-venv)."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Said first, since the compiler says nothing for a while.
$(SERVER): setup.cfg pyproject.toml | $(CREATED)
	@echo "Installing; where there is a C compiler it builds the extension as well, which takes minutes (KESTREL_EXTENSION=none: without)."
	$(PIP) --editable .
	@touch $@

# With the PostgreSQL storage, which is a separate package as plugins of other authors are.
$(TESTS): setup.cfg pyproject.toml $(POSTGRES)/setup.cfg | $(CREATED)
	$(PIP_PURE) --editable '.[test,spark]' --editable $(POSTGRES)
	@touch $(SERVER) $@

# Has wheels for some platforms only. Where it cannot be built its tests are left out, and each `make test` tries again.
$(LIBMEMCACHED): setup.cfg pyproject.toml | $(TESTS)
	@echo "$(PIP_PURE) --editable '.[libmemcached]'"
	@if $(PIP_PURE) --editable '.[libmemcached]' 2>$@.log; then touch $@; \
	    else echo "pylibmc could not be built here (see $@.log): the tests that need it will be left out."; fi

# Has wheels for few platforms: the tests do without it.
$(FUZZ): setup.cfg pyproject.toml | $(TESTS)
	$(PIP_PURE) --editable '.[test,spark,fuzz]'
	@touch $@

$(RELEASE): setup.cfg pyproject.toml | $(CREATED)
	$(PIP_PURE) --editable '.[release]'
	@touch $(SERVER) $@

# With the test tools, since kestrel.testing is checked as well.
$(CHECKS): setup.cfg pyproject.toml $(POSTGRES)/setup.cfg | $(CREATED)
	$(PIP_PURE) --editable '.[test,check,spark]' --editable $(POSTGRES)
	@touch $(SERVER) $(TESTS) $@
