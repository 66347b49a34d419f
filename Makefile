# make demo    elastic training under fire beside stock DDP, compared bit for bit
# make service-demo    three runs of the training service while rank, master and runner are killed: a table
# make fidelity    is the simulator right? 12 small jobs on a real service under three policies, beside it: SEED, POLICIES
# make test    every promise once   make check   format, lint, types, layers, protos
# make test-slow    the other tests: more cases, seeds and faults (tests/slow.py)
# make test-further    what those two show with other cases already; make test-all: all three
# make test-kube    the operator against the cluster of ELASTANE_TEST_KUBECONFIG: docs/testing-kubernetes.md
# make test-images    the container images, built and run, and README's commands in a clean one: needs podman or docker
#                     (tests/images/engine.py)
# make test-containers    runners that start containers, with real ones: needs podman and busybox-static
# make test-quick    what a version of Python or torch could break, then elastane verify; python tools/compatibility.py
#                    runs it in environments of other versions and writes the table of docs/installing.md
# make test-wheel    the wheel in clean virtual environments: client and master without torch; doctor, run, verify, demo
# make test-wheel-container    the wheel in an empty Debian container: pip install, demo, verify, with their seconds; needs
#                              podman, and root and debootstrap or a root file system in ELASTANE_TEST_DEBIAN
# make test-frameworks    scripts of other training libraries in a ring, with the real libraries from PyPI
# make frameworks-table    a table of some of them: lines changed, sha256 beside their own DDP runs: ONLY=part of a name
# make fuzz-parity    200 random scripts under churn beside stock DDP, or as many as FUZZ_MINUTES allow
# make pipeline-parity    every cut of small models into pipelines beside stock DDP, under five minutes: ONLY=model one
# make controls    each detector switched off in turn: the script that it refuses then has other bits; ONLY=words
# make gallery    public scripts, converted, beside their originals under kills: ONLY=a,b SEEDS=n KILLS=n
# make test-browser    the dashboard in a real Chromium (Debian: chromium); make screenshots: its pictures in docs/images
# make sim     seeded simulation of whole jobs under faults: SEED=n replays one, SEEDS=n FIRST=n runs others
# make sim-mutants    known bugs, planted one at a time: in how many seeds the simulation finds each
# make service-sim    the training service under faults: SEED, SEEDS, FIRST as above; make service-mutants: known bugs in it
# make slot-sim    pushes to parameter servers under faults: SEED, SEEDS, FIRST as above; make slot-mutants: known bugs in it
# make fuzz    every rpc with messages nobody sends; make fuzz-stored: the store's decoder with spoiled bytes
# make chaos   about ten minutes of real faults of all kinds on one job after the other; root can inject more; PIPELINE=2:3 of a
#              model in stages, each on two workers; PS=3 REPLICAS=1 of a job with parameter servers
# make soak    an hour of a busy master in a few minutes: memory and file descriptors must stay flat
# make hostile    a thousand hostile connections at a master's port, attack after attack: its memory, honest callers' times
# make bench   every benchmark beside its peer, under 25 minutes, into docs/benchmarks.md; ONLY=a,b some; FULL=1 long
# make bench-check   the same again: fails where a ratio is worse than the kept one by more than noise
# make audit-deps    the locked files have their hashes, and no weakness that PyPI knows of (needs its JSON API)
# make newcomer    times the tutorial from a clone to the first verified script: SOURCE=url another repository
# make docs    the documentation site, into .elastane/site; a warning is a fault
# make release    sdist, wheel, bill of materials, notes and SHA256SUMS of HEAD, in dist/: KEY=an SSH key signs them,
#                 CANDIDATE=1 takes the notes of what is unreleased, OUT=another folder; make release-notes: these alone
# make lock          requirements.lock afresh, after a change of constraints.txt
# Each makes its virtual environment in $(VENV) and installs with constraints.txt.

# Where it is set (containers, CI), each process of the tests would compile all that it imports, and each of pytest's
# workers all tests.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PROTOS := $(sort $(wildcard proto/elastane_proto/v1/*.proto proto/elastane_proto/training/*.proto))
BUF    := @bufbuild/buf@1.75.0

JOBS         ?= 5

CHAOS_MINUTES ?= 8
FUZZ_MINUTES ?= 60
SOAK_MINUTES ?= 60
CASES        ?= 200
FIRST        ?= 0
EXAMPLES     ?= 1000
FUZZ_SECONDS ?= 60
RESULTS      ?= .elastane/fuzz-parity.jsonl
SIM          := PYTHONPATH=tests $(BIN)/python -m sim
SERVICE_SIM  := PYTHONPATH=tests $(BIN)/python -m service_sim
SLOT_SIM     := PYTHONPATH=tests $(BIN)/python -m slot_sim

.PHONY: demo service-demo fidelity test collect test-slow test-further test-all gallery test-kube test-images test-containers test-frameworks frameworks-table test-quick test-wheel test-wheel-container test-browser screenshots newcomer chaos controls fuzz-parity pipeline-parity sim sim-mutants \
    service-sim service-mutants slot-sim slot-mutants fuzz \
    fuzz-stored soak hostile check format proto proto-check docs docs-pages bench bench-check lock \
    audit-hashes audit-deps release release-notes clean

demo: $(VENV)/.installed
	$(BIN)/elastane demo

service-demo: $(VENV)/.installed
	$(BIN)/elastane demo service

# About six minutes on two idle cores; what else runs makes starts slower than the simulator is told.
fidelity: $(VENV)/.installed
	$(BIN)/python benchmarks/fidelity.py $(if $(SEED),--seed $(SEED)) $(if $(POLICIES),--policies $(POLICIES))

# Kept bytecode saves each worker of pytest half a minute of rewriting the tests' assertions.
unexport PYTHONDONTWRITEBYTECODE

# JOBS tests at once; most wait for processes of their own more than they work. Who has none left takes some of
# another's: tests/conftest.py deals them out.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: $(VENV)/.installed
	$(PYTEST) -m "not slow and not further"

# The assertions of all tests are rewritten once, instead of by each worker of the first run.
collect: $(VENV)/.installed
	@said=$$($(BIN)/python -m pytest --collect-only -qq) || { echo "$$said"; exit 1; }

test-slow: $(VENV)/.installed
	$(PYTEST) -m "slow and not further"

test-further: $(VENV)/.installed
	$(PYTEST) -m further

test-all: $(VENV)/.installed
	$(PYTEST)

# An unset variable is an error here, and not a page of skipped tests that looks like success.
test-kube: $(VENV)/.installed
	@test -n "$$ELASTANE_TEST_KUBECONFIG" || \
	  { echo "set ELASTANE_TEST_KUBECONFIG to the kubeconfig of a test cluster: docs/testing-kubernetes.md" >&2; exit 2; }
	@test -r "$$ELASTANE_TEST_KUBECONFIG" || \
	  { echo "ELASTANE_TEST_KUBECONFIG: $$ELASTANE_TEST_KUBECONFIG cannot be read" >&2; exit 2; }
	$(BIN)/python -m pytest tests/kube -k apiserver --durations 10 -rs

# The worker's torch is PyPI's; TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu takes a tenth of the download.
test-images: $(VENV)/.installed
	ELASTANE_TEST_IMAGES=1 $(BIN)/python -m pytest tests/images -s --timeout 3600

# Needs podman, and a static busybox on the PATH (Debian: busybox-static).
test-containers: $(VENV)/.installed
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[containers]'
	ELASTANE_TEST_CONTAINERS=1 $(BIN)/python -m pytest tests/integration/test_container_engine.py tests/integration/test_container_runner.py -rs

# The libraries are no part of what the other tests install.
test-frameworks: $(VENV)/.installed
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[integrations,hydra]'
	ELASTANE_TEST_FRAMEWORKS=1 $(BIN)/python -m pytest tests/frameworks -rs

frameworks-table: $(VENV)/.installed
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[integrations,hydra]'
	PYTHONPATH=tests $(BIN)/python -m frameworks.table $(if $(ONLY),--only "$(ONLY)")

test-quick: $(VENV)/.installed
	$(BIN)/python tools/compatibility.py --here --jobs $(JOBS)

test-wheel: $(VENV)/.installed
	ELASTANE_TEST_WHEEL=1 $(BIN)/python -m pytest tests/wheel -rs --timeout 3600

test-wheel-container: $(VENV)/.installed
	ELASTANE_TEST_WHEEL=1 ELASTANE_TEST_WHEEL_CONTAINER=1 $(BIN)/python -m pytest tests/wheel/test_wheel_container.py -s -rs --timeout 3600

test-browser: $(VENV)/.installed
	@PYTHONPATH=tests $(BIN)/python -c "from browser import chromium as c; raise SystemExit(c.MISSING if c.chromium_path() is None else 0)"
	$(BIN)/python -m pytest tests/browser --durations 5 -rs

# A master, workers, one of them killed, and the page that shows it: about a minute.
screenshots: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m browser.screenshots docs/images $(ONLY)

# SEED=n gives the same order of faults and victims again, FAULTS=a,b only these.
chaos: $(VENV)/.installed
	$(BIN)/elastane chaos --minutes $(CHAOS_MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(PIPELINE),--pipeline $(PIPELINE) --shadow 1) \
	    $(if $(PS),--ps $(PS) --workers 8 --ps-replicas $(or $(REPLICAS),0) --pace 0.2)

# Each recipe beside its own original, started by torchrun; prints a table at the end.
gallery: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m recipes.beside $(if $(ONLY),--only "$(ONLY)") $(if $(SEEDS),--seeds $(SEEDS)) \
	    $(if $(KILLS),--kills $(KILLS))

# Taken up where it was when run again; SEED=n runs one case alone.
fuzz-parity: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m parity.fuzz --minutes $(FUZZ_MINUTES) --results $(RESULTS) \
	    $(if $(SEED),--seed $(SEED),--first $(FIRST) --cases $(CASES))

pipeline-parity: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m parity.pipeline_matrix $(if $(ONLY),--only $(ONLY))

controls: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m parity.controls $(if $(ONLY),--only "$(ONLY)")

sim: $(VENV)/.installed
	$(SIM) $(if $(SEED),--seed $(SEED),--first $(FIRST) $(if $(SEEDS),--seeds $(SEEDS)))

sim-mutants: $(VENV)/.installed
	$(SIM).mutants $(if $(ONLY),--only "$(ONLY)")

service-sim: $(VENV)/.installed
	$(SERVICE_SIM) $(if $(SEED),--seed $(SEED),--first $(FIRST) $(if $(SEEDS),--seeds $(SEEDS)))

service-mutants: $(VENV)/.installed
	$(SERVICE_SIM).mutants $(if $(ONLY),--only "$(ONLY)")

slot-sim: $(VENV)/.installed
	$(SLOT_SIM) $(if $(SEED),--seed $(SEED),--first $(FIRST) $(if $(SEEDS),--seeds $(SEEDS)))

slot-mutants: $(VENV)/.installed
	$(SLOT_SIM).mutants $(if $(ONLY),--only "$(ONLY)")

# Each rpc of a real master with nonsense, other nonsense every time; EXAMPLES of each.
fuzz: $(VENV)/.installed
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/fuzz --timeout 3600

# The store's decoder, guided by what its inputs reach; atheris has wheels for x86-64 Linux.
fuzz-stored: $(VENV)/.installed
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	PYTHONPATH=tests $(BIN)/python -m fuzz.coverage_guided -max_total_time=$(FUZZ_SECONDS)

soak: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m integration.soak --minutes $(SOAK_MINUTES)

hostile: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m integration.hostile

check: $(VENV)/.installed proto-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if command -v npm >/dev/null; then cd proto && npx --yes $(BUF) lint && echo "buf lint: clean"; \
	else echo "buf lint: left out, npm is not installed"; fi

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.installed
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTOS)

# Generated code is never edited: made afresh, it must be what is committed.
proto-check: $(VENV)/.installed
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$$fresh --pyi_out=$$fresh --grpc_python_out=$$fresh $(PROTOS) && \
	for file in $$(cd $$fresh && find . -type f); do cmp "$$fresh/$$file" "proto/$$file" || { echo "run: make proto"; exit 1; }; done && \
	echo "generated code: up to date"

# What the tutorial says, in a fresh clone and a fresh virtual environment: needs none of ours.
newcomer:
	$(PYTHON) tools/newcomer.py $(SOURCE)

docs: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m docs_site

# The committed pages and pictures that are generated: a test holds them up to date.
docs-pages: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m docs_site errors
	PYTHONPATH=tools $(BIN)/python -m docs_site comparison
	PYTHONPATH=tools $(BIN)/python -m docs_site pictures

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench.py $(if $(ONLY),--only $(ONLY)) $(if $(FULL),--full)
	PYTHONPATH=tools $(BIN)/python -m docs_site comparison

bench-check: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench.py --check $(if $(ONLY),--only $(ONLY)) $(if $(FULL),--full)

RELEASE := PYTHONPATH=tools $(BIN)/python -m release

release: $(VENV)/.installed
	$(RELEASE) $(if $(KEY),--key $(KEY)) $(if $(CANDIDATE),--candidate) $(if $(OUT),--out $(OUT))

release-notes: $(VENV)/.installed
	@$(RELEASE) notes $(if $(CANDIDATE),--candidate)

lock: $(VENV)/.installed
	$(BIN)/python tools/lock.py

# pip refuses a file whose hash is not the locked one.
audit-hashes: $(VENV)/.installed
	@files=$$(mktemp -d) && trap 'rm -rf "$$files"' EXIT && \
	$(BIN)/pip download --quiet --require-hashes --no-deps --dest "$$files" -r requirements.lock && \
	echo "hashes: $$(ls "$$files" | wc -l) files are the locked ones"

# Strict: a package whose advisories PyPI does not give is a failure, and not a clean one.
audit-deps: audit-hashes $(VENV)-audit/.installed
	$(VENV)-audit/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner off -r requirements.lock

$(VENV)-audit/.installed: Makefile
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	@touch $@

# The stamp is remade when a dependency changes. Compiled with all processors, which pip does not, and without the
# packages' own tests; some packages have files that cannot be.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -e '.[worker,dev]'
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-audit .elastane .mypy_cache .ruff_cache .hypothesis .import_linter_cache
