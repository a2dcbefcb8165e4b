# Everything runs from .venv. Creating it requires only python3 (with venv) and make.
# The install is editable: only a change of setup.cfg or pyproject.toml causes a new install.

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

# The tests that use tests/sample.py. `make damage` covers the recorded journals.
EVERY_PLACE := tests/journal/test_replay.py tests/storage/test_crashes.py tests/storage/scroll/test_crashes.py
EVERY_PLACE += tests/tools/test_convert_resumed.py

VENV := .venv
PIP := $(VENV)/bin/pip --disable-pip-version-check install --quiet
# Developers build the extension with `make compiled`, not at each install.
PIP_PURE := KESTREL_EXTENSION=none $(PIP)

# One stamp per set of packages, so that `make run` installs no test tools.
CREATED := $(VENV)/.created
SERVER := $(VENV)/.server
TESTS := $(VENV)/.tests
LIBMEMCACHED := $(VENV)/.libmemcached
NPM := $(VENV)/.npm
CHECKS := $(VENV)/.checks
FUZZ := $(VENV)/.fuzz
RELEASE := $(VENV)/.release
DEPLOY := $(VENV)/.deploy

.DEFAULT_GOAL := help
.PHONY: help run cluster replicated test check compiled torture kill-restart moves convert-kills database-kills failover streams spark-environments membership zookeeper-kills soak histories every-place damage hazards fuzz abuse benchmark bench docs dist smoke deploy-check clean
.NOTPARALLEL:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(SERVER) ## start the server in the foreground, with its queues under ./var/ (ARGS="--memcache tcp:22134:interface=127.0.0.1")
	@$(VENV)/bin/twistd --nodaemon --pidfile= kestrel --config tap-configs/development.toml $(ARGS)

# Requires the test tools, because PySpark contains ZooKeeper.
cluster: $(TESTS) ## start three servers that announce themselves in a ZooKeeper, under ./var/cluster (ARGS="--servers 5"; docs/cluster.md)
	@$(VENV)/bin/python examples/cluster/run.py $(ARGS)

replicated: $(TESTS) ## start a server over a replicated PostgreSQL, with Patroni and etcd, under ./var/replicated (ARGS="--nodes 2"; docs/replication.md)
	@$(VENV)/bin/python -m examples.replicated.run $(ARGS)

# One process per processor. Idle processes take tests from busy ones.
test: $(TESTS) $(LIBMEMCACHED) $(NPM) ## run the tests (ARGS="-k name" is passed to pytest; "-n 0" for one process)
	@$(VENV)/bin/python -m pytest -n logical --dist worksteal $(ARGS)

check: $(CHECKS) ## run ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# Builds in the checkout. Unlike an installation, this fails if the extension cannot be built.
compiled: $(CHECKS) ## build the extension: the modules of the hot path, compiled (needs a C compiler; takes two minutes)
	KESTREL_EXTENSION=require $(VENV)/bin/python setup.py --quiet build_ext --inplace

torture: $(TESTS) ## run clients of all protocols while processes, networks, disks and clocks fail, and count items (SEED=1 SECONDS=120 STORAGE=scroll)
	@$(VENV)/bin/python -m tests.torture.torture --storage $(STORAGE) --seed $(SEED) --seconds $(or $(SECONDS),120) $(ARGS)

kill-restart: $(TESTS) ## kill -9 a server under load repeatedly, and count items (SEED=1 ITEMS=100000 KILLS=20 STORAGE=scroll|postgres)
	@$(VENV)/bin/python -m tests.torture.kill_restart --storage $(STORAGE) --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

moves: $(TESTS) ## kill -9 a server while items move between queues by expiry and errors, and count items (SEED=1 ITEMS=20000 KILLS=10)
	@$(VENV)/bin/python -m tests.torture.moves --storage $(STORAGE) --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

convert-kills: $(TESTS) ## kill -9 kestrel-convert during conversions to scrolls and back, and compare (SEED=1 ITEMS=100000 KILLS=20)
	@$(VENV)/bin/python -m tests.torture.convert --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

database-kills: $(TESTS) ## kill -9 a server under load and its PostgreSQL in turn, and count items (SEED=1 ITEMS=100000 KILLS=20)
	@$(VENV)/bin/python -m tests.torture.database --seed $(SEED) --items $(ITEMS) --kills $(KILLS)

failover: $(TESTS) ## kill -9 the primary of a replicated PostgreSQL under load repeatedly, and count items (SEED=1 KILLS=5, ARGS="--ttl 10"; docs/replication.md)
	@$(VENV)/bin/python -m tests.torture.failover --seed $(SEED) --kills $(KILLS) $(ARGS)

streams: $(TESTS) ## kill drivers, executors, servers and connections of Spark streams, and count items (SEED=1 ITEMS=100000 FAULTS=12 DELIVERY=exactly_once)
	@for each in $(DELIVERY); do \
	    $(VENV)/bin/python -m tests.torture.streams --delivery $$each --seed $(SEED) --items $(ITEMS) --faults $(FAULTS) $(ARGS) || exit 1; \
	done

spark-environments: $(TESTS) ## run a Spark program on clusters, Spark Connect and other versions of PySpark (docs/spark.md; ARGS="wheel connect")
	@$(VENV)/bin/python -m tests.spark.environments.environments $(ARGS)

membership: $(TESTS) ## change server statuses, end sessions, kill servers and ZooKeeper, and check the server sets (SEED=1 CHANGES=1000)
	@$(VENV)/bin/python -m tests.torture.membership --seed $(SEED) --changes $(CHANGES)

zookeeper-kills: $(TESTS) ## kill -9 the ZooKeeper of a server under load, and measure the effect on clients (SEED=1 KILLS=20)
	@$(VENV)/bin/python -m tests.torture.zookeeper_kills --seed $(SEED) --kills $(KILLS)

soak: $(TESTS) ## run a server under steady load, and check that nothing grows (SEED=1 MINUTES=40 STORAGE=scroll, ARGS="--picture soak.svg")
	@$(VENV)/bin/python -m tests.torture.soak --storage $(STORAGE) --seed $(SEED) --minutes $(MINUTES) $(ARGS)

histories: $(TESTS) ## run thousands of random histories of queues with tiny limits, over restarts and crashes (SEED=1 EXAMPLES=2000)
	@$(VENV)/bin/python -m tests.torture.history --seed $(SEED) --examples $(EXAMPLES)

every-place: $(TESTS) ## run the sampling tests on every byte and disk operation instead of a sample (takes minutes)
	@KESTREL_EVERY_PLACE=1 $(VENV)/bin/python -m pytest -n logical --dist worksteal $(EVERY_PLACE) $(ARGS)

damage: $(TESTS) ## damage every byte of recorded journals and every bit of queue folders, and start on each (ARGS="--case NAME" or ARGS="--scene NAME": only that one)
	@$(if $(findstring --scene,$(ARGS)),,$(VENV)/bin/python -m tests.torture.damage --every-byte $(ARGS))
	@$(if $(findstring --case,$(ARGS)),,$(VENV)/bin/python -m tests.torture.damage_matrix --every-byte $(ARGS))

hazards: $(TESTS) ## test damage while the server is down, unusual names, unread replies, no free inodes (SEED=1, ARGS="--hazard files")
	@$(VENV)/bin/python -m tests.torture.hazards --seed $(SEED) $(ARGS)

fuzz: $(FUZZ) ## give arbitrary bytes to parsers, sessions and file readers (SECONDS=60 or RUNS=1000, SEED=1 TARGETS="memcache text" JOBS=1)
	@$(VENV)/bin/python -m tests.fuzz $(TARGETS) --seconds $(or $(SECONDS),60) $(if $(RUNS),--runs $(RUNS)) --seed $(SEED) --jobs $(JOBS)

benchmark: $(TESTS) ## measure speed, memory and latency (SEED=1, ARGS="--short", ARGS=replay; docs/performance.md)
	@$(VENV)/bin/python -m benchmarks --seed $(SEED) $(ARGS)

bench: $(TESTS) ## compare with beanstalkd, Redis and memcached (QUICK=1, SEED=1, ARGS="--picture bench.svg"; docs/performance.md)
	@$(VENV)/bin/python -m benchmarks.peers --seed $(SEED) $(if $(QUICK),--quick) --results build/bench.json $(ARGS)

abuse: $(TESTS) ## run malicious clients, and measure their effect on others (SECONDS=10 for each, SEED=1, ARGS="garbage"; docs/reliability.md)
	@$(VENV)/bin/python -m benchmarks.abuse --seed $(SEED) --seconds $(or $(SECONDS),10) $(ARGS)

# Requires the test tools, because sphinx imports the modules for tests.
docs: $(TESTS) ## build the documentation site in build/docs/html (ARGS="-E" reads every page again)
	@$(VENV)/bin/python -m sphinx -W --keep-going -q -j auto -c docs -d build/docs/pages $(ARGS) . build/docs/html
	@echo "The documentation is in build/docs/html/index.html."

# A wheel without the extension would fit every machine, and pip would prefer it to building the extension.
dist: $(RELEASE) ## build the source distribution and a wheel for this machine into dist/, and check them (EXTENSION=none for a pure wheel)
	rm -rf dist
	KESTREL_EXTENSION=$(EXTENSION) $(VENV)/bin/python -m build
	$(VENV)/bin/twine check --strict dist/*

smoke: $(RELEASE) ## install a wheel in an empty environment elsewhere, and try every command (WHEEL=dist/NAME.whl; without it a pure wheel is built)
ifeq ($(WHEEL),)
	rm -rf build/smoke
	KESTREL_EXTENSION=none $(VENV)/bin/python -m build --outdir build/smoke
endif
	@$(VENV)/bin/python -I tests/release/smoke.py $(or $(WHEEL),build/smoke/*.whl) $(ARGS)

deploy-check: $(DEPLOY) ## validate deploy/ with the schemas of Kubernetes and with promtool (Debian: prometheus)
	$(VENV)/bin/kubernetes-validate --strict -k 1.37 -k 1.30 deploy/kubernetes/*.yaml
	cd deploy/monitoring && promtool check rules rules.yaml && promtool test rules rules_test.yaml

clean: ## remove everything that make created (.venv, build products, caches), but not ./var/
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache _trial_temp*
	rm -f twisted/plugins/dropin.cache *.so kestrel/compiled.json
	find kestrel -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@command -v $(PYTHON) >/dev/null || \
	    { echo "$(PYTHON) was not found. Install Python 3.11 or later (Debian: apt-get install python3 python3-venv)."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is older than 3.11. Choose another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) has no venv module. Install it (Debian: apt-get install python3-venv)."; exit 1; }
	@echo "Creating $(VENV)."
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Without --quiet, so that the first `make run` shows what it is doing.
$(SERVER): setup.cfg pyproject.toml | $(CREATED)
	@echo "Installing Kestrel in pure Python. 'make compiled' makes it about twice as fast."
	KESTREL_EXTENSION=$${KESTREL_EXTENSION:-none} $(VENV)/bin/pip --disable-pip-version-check install --progress-bar off --editable .
	@touch $@

$(TESTS): setup.cfg pyproject.toml | $(CREATED)
	$(PIP_PURE) --editable '.[test,spark]'
	@touch $(SERVER) $@

# pylibmc has wheels for some platforms only. If it cannot be built, its tests are skipped, and each `make test` retries.
$(LIBMEMCACHED): setup.cfg pyproject.toml | $(TESTS)
	@echo "$(PIP_PURE) --editable '.[libmemcached]'"
	@if $(PIP_PURE) --editable '.[libmemcached]' 2>$@.log; then touch $@; \
	    else echo "pylibmc could not be built (see $@.log); the tests that need it will be skipped."; fi

# Clients for Node. If they cannot be installed, their tests are skipped, and each `make test` retries.
$(NPM): tests/npm/package.json | $(CREATED)
	@mkdir -p build/npm && cp $< build/npm/
	@echo "npm install --prefix build/npm"
	@if npm install --prefix build/npm --ignore-scripts --no-package-lock --no-audit --no-fund --fetch-retries=1 >$@.log 2>&1; then touch $@; \
	    else echo "the clients for Node could not be installed (see $@.log); the tests that need them will be skipped."; fi

# atheris has wheels for few platforms, and the tests do not need it.
$(FUZZ): setup.cfg pyproject.toml | $(TESTS)
	$(PIP_PURE) --editable '.[test,spark,fuzz]'
	@touch $@

$(RELEASE): setup.cfg pyproject.toml | $(CREATED)
	$(PIP_PURE) --editable '.[release]'
	@touch $(SERVER) $@

# kubernetes-validate contains the schemas of all versions, and the tests do not need it.
$(DEPLOY): setup.cfg pyproject.toml | $(CREATED)
	$(PIP_PURE) --editable '.[deploy]'
	@touch $(SERVER) $@

# Requires the test tools, because mypy also checks kestrel.testing.
$(CHECKS): setup.cfg pyproject.toml | $(CREATED)
	$(PIP_PURE) --editable '.[test,check,spark]'
	@touch $(SERVER) $(TESTS) $@
