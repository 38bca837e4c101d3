# `make` alone prints this help. Continuous integration calls `make fast`, and then .ci/run: `make check features doc
# deny test test-peers icount`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
# For example CARGO_FLAGS=--locked, which continuous integration sets.
CARGO_FLAGS ?=
# Features of the test builds. All builds have the same set, because for another one cargo compiles nearly every
# dependency again.
export TEST_FEATURES = plimsoll/parquet,plimsoll/tokenizers
# Seconds each fuzz target runs.
FUZZ_SECONDS ?= 10
# How often make soak runs a test.
SOAK_TIMES ?= 50

TYPOS = .peers/typos/bin/typos
TYPOS_VERSION = 1.52.0

.PHONY: help
help: ## print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 10

.PHONY: demo
demo: ## build, a steady and a cold run over mutual TLS, a ladder, a search, two HTML pages
	@deploy/demo.sh

.PHONY: check
check: $(TYPOS) ## formatting, spelling and lints, warnings as errors
	$(CARGO) fmt --all -- --check
	$(TYPOS)
	tests/commits.py
	$(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets --features $(TEST_FEATURES),plimsoll-protocols/icount -- -D warnings
	@# The fuzz targets are a separate workspace, whose lock file must follow new dependencies of the crates.
	$(CARGO) metadata $(CARGO_FLAGS) --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null

.PHONY: fast
fast: check ## before a push: check, unit tests, the rules of the tree (under ten minutes once dependencies are compiled)
	$(CARGO) test $(CARGO_FLAGS) --no-fail-fast --workspace --lib --bins --test tidy --features $(TEST_FEATURES)

$(TYPOS):
	python3 -m venv --clear .peers/typos
	.peers/typos/bin/pip install --quiet --disable-pip-version-check 'typos==$(TYPOS_VERSION)'

.PHONY: hooks
hooks: ## have git check the subject of each commit before it is made
	git config core.hooksPath .githooks

.PHONY: features
features: ## each library crate by itself, with its default features and with none
	@CARGO="$(CARGO)" CARGO_FLAGS="$(CARGO_FLAGS)" tests/features.sh

.PHONY: test
test: ## everything: install what is missing, all tests
	@CARGO="$(CARGO)" CARGO_FLAGS="$(CARGO_FLAGS)" tests/run.py tests

.PHONY: test-peers
test-peers: ## what takes minutes to build: a newer OpenSSL, the Autobahn testsuite, protobuf's conformance suite, files of Compose and Kustomize, MPI and Slurm, the website, a bounded fuzz run
	@CARGO="$(CARGO)" CARGO_FLAGS="$(CARGO_FLAGS)" tests/run.py peers $(FUZZ_SECONDS)

# Compiles the parts that need other flags than the tests. The program of `make icount` comes first, because nothing may
# run beside `make icount`; `make test-peers` would compile the fuzz targets beside its tests anyway.
.PHONY: ahead
ahead: ## compiles what `make test-peers` and `make icount` need besides the tests
	@CARGO="$(CARGO)" CARGO_FLAGS="$(CARGO_FLAGS)" bench/icount.py --build
	@CARGO_FLAGS="$(CARGO_FLAGS)" fuzz/run.sh build

.PHONY: test-release
test-release: ## panics put in on purpose, in a release build (8 minutes to build)
	@CARGO="$(CARGO)" CARGO_FLAGS="$(CARGO_FLAGS)" tests/run.py release

.PHONY: soak
soak: ## one test fifty times beside busy loops: make soak T=name (SOAK_TIMES=50)
	@test -n "$(T)" || { echo "make soak: which test? for example: make soak T=merge_is_order_independent" >&2; exit 2; }
	@CARGO="$(CARGO)" CARGO_FLAGS="$(CARGO_FLAGS)" tests/run.py soak '$(T)' $(SOAK_TIMES)

# Options of make faults: how many system calls to fail, and the seed that selects them (default: the time).
FAULTS ?= 2000
FAULTS_SEED ?=

.PHONY: faults
faults: ## fails FAULTS (2000) system calls of runs, searches, ladders, shards, relays and servers, one at a time (15 minutes)
	@tests/setup.sh peers
	$(CARGO) build $(CARGO_FLAGS) -p plimsoll
	@tests/faults.py target/debug/plimsoll --number $(FAULTS) $(if $(FAULTS_SEED),--seed $(FAULTS_SEED))

.PHONY: test-kubernetes
test-kubernetes: PROFILE = debug
test-kubernetes: ## shards on a real Kubernetes of two nodes, built from its modules and started on this machine (many minutes; as root)
	@tests/setup.sh kubernetes
	@$(MAKE) --no-print-directory image PROFILE='$(PROFILE)'
	$(CARGO) build $(CARGO_FLAGS) -p plimsoll
	@tests/kubernetes.py target/debug/plimsoll target/dist

.PHONY: t
t: ## tests of one crate: make t C=plimsoll-model
	@test -n "$(C)" || { echo "make t: which crate? for example: make t C=plimsoll-model" >&2; exit 2; }
	$(CARGO) test $(CARGO_FLAGS) --no-fail-fast -p $(C)

.PHONY: golden
golden: ## rewrite the golden files from what the code prints now; read the diff before committing
	SNAPSHOTS=overwrite TRYCMD=overwrite $(CARGO) test $(CARGO_FLAGS) --no-fail-fast --workspace

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZ_SECONDS (10) seconds, from where the last run ended
	fuzz/run.sh $(FUZZ_SECONDS)

.PHONY: bench
bench: setup-bench release ## side by side with h2load, ghz, k6, grpc.aio, wrk, oha, vegeta and s_time; pacing; arrivals; fleet; Bolt; sidecars; streams; sessions; connections at rest; shards
	bench/grpc.py
	bench/http.py
	bench/journey.py
	bench/journey.py --stall
	bench/bill.py
	bench/pacing.py
	bench/arrivals.py
	bench/assay.py
	bench/fleet.py
	bench/bolt.py
	bench/tick.py
	bench/sidecar.py
	bench/tax.py
	bench/track.py
	bench/streams.py
	bench/varying.py
	bench/sessions.py
	bench/hold.py
	bench/tls.py
	bench/shards.py

# Option of make icount: 1 records the current figures.
BLESS ?=

.PHONY: icount
icount: ## instructions of a call on the hot path, under valgrind: fails over 3 % above bench/icount.json (BLESS=1 rewrites it)
	@CARGO="$(CARGO)" CARGO_FLAGS="$(CARGO_FLAGS)" bench/icount.py $(if $(BLESS),--bless)

# Options of make mutants: files or patterns; the number of mutants to draw and the seed; a pattern
# of mutants' names; the tests to run.
FILE ?=
SAMPLE ?=
SEED ?=
RE ?=
TESTS ?=
MUTANTS = .peers/bin/cargo-mutants
MUTANTS_VERSION = 27.0.0

.PHONY: mutants
mutants: $(MUTANTS) ## what the tests do not notice in FILE, or of SAMPLE changes: make mutants FILE=crates/…/x.rs [SAMPLE=200 SEED=…] [RE=…] [TESTS='plimsoll-model unit']
	@test -n "$(FILE)$(SAMPLE)" || { echo "make mutants: which file? for example: make mutants FILE=crates/plimsoll-model/src/statistics/rank.rs" >&2; exit 2; }
	@CARGO="$(CARGO)" nice -n 10 tests/mutants.py $(foreach file,$(FILE),'$(file)') $(if $(SAMPLE),--sample $(SAMPLE)) \
		$(if $(SEED),--seed '$(SEED)') $(if $(RE),--re '$(RE)') $(if $(TESTS),--tests '$(TESTS)')

$(MUTANTS):
	CARGO_INSTALL_ROOT="$(CURDIR)/.peers" CARGO_TARGET_DIR="$(CURDIR)/target/mutants/tool" \
		nice -n 10 $(CARGO) install --locked --force cargo-mutants@$(MUTANTS_VERSION)

MDBOOK = .peers/bin/mdbook
MDBOOK_VERSION = 0.5.4

.PHONY: site
site: $(MDBOOK) ## the documentation as a website, target/site/book, with every link checked
	@docs/site.py $(MDBOOK)

$(MDBOOK):
	CARGO_INSTALL_ROOT="$(CURDIR)/.peers" CARGO_TARGET_DIR="$(CURDIR)/target/site-tool" \
		nice -n 10 $(CARGO) install --locked --force --debug mdbook@$(MDBOOK_VERSION) --no-default-features --features search

# Options of make dist: cargo's profile, and existing binaries to package.
PROFILE ?= dist
GNU_BINARY ?=
STATIC_BINARY ?=

.PHONY: dist
dist: ## what people install, in target/dist: archives, .deb, .rpm, a Python wheel, images (slow to build; PROFILE=debug for a try)
	@packaging/setup.sh dist
	@PROFILE='$(PROFILE)' GNU_BINARY='$(GNU_BINARY)' STATIC_BINARY='$(STATIC_BINARY)' packaging/dist.sh

.PHONY: image
image: ## container images without a base, as tar files in target/dist, from a static binary (PROFILE=release builds sooner)
	@packaging/setup.sh dist
	@PROFILE='$(PROFILE)' STATIC_BINARY='$(STATIC_BINARY)' packaging/dist.sh image

.PHONY: test-dist
test-dist: ## installs what make dist made, each as people install it, and runs it (as root)
	@packaging/setup.sh test
	@packaging/test.py

.PHONY: test-publish
test-publish: ## packs every crate as for a registry, and compiles it from what was packed
	$(CARGO) publish $(CARGO_FLAGS) --workspace --dry-run --allow-dirty

.PHONY: release
release: ## the release binary, target/release/plimsoll
	$(CARGO) build $(CARGO_FLAGS) --release -p plimsoll

# Documents the libraries with private items, for readers of the source. The binary's comments are its help texts.
.PHONY: doc
doc: ## the API documentation, warnings as errors
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc $(CARGO_FLAGS) --workspace --lib --no-deps --document-private-items

DENY = .peers/bin/cargo-deny
DENY_VERSION = 0.20.2

.PHONY: deny
deny: $(DENY) ## licences, duplicates and unwanted crates
	$(DENY) check --hide-inclusion-graph bans licenses sources

# A debug build of cargo-deny is fast enough, and takes less time to compile.
$(DENY):
	CARGO_INSTALL_ROOT="$(CURDIR)/.peers" CARGO_TARGET_DIR="$(CURDIR)/target/deny-tool" CARGO_PROFILE_DEV_DEBUG=false \
		nice -n 10 $(CARGO) install --locked --force --debug cargo-deny@$(DENY_VERSION)

.PHONY: setup setup-tests setup-peers setup-bench
setup: setup-peers setup-bench ## install what tests and benchmarks need (Debian packages, Python, Go peers)
setup-tests:
	@tests/setup.sh tests
setup-peers:
	@tests/setup.sh peers
setup-bench:
	@tests/setup.sh bench
