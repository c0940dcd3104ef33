# make demo and make test are all a newcomer needs: they install what is missing.
# make alone lists the targets.

# R finds the installed package in .rlib, and reticulate finds Python in .venv.
export R_LIBS := $(CURDIR)/.rlib$(if $(R_LIBS),:$(R_LIBS))
export RETICULATE_PYTHON := $(CURDIR)/.venv/bin/python
# The tests start hundreds of processes, which read what the first of them has compiled. It lies
# apart: beside the sources it would change the folders that `install` looks at.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.rlib/.pycache
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Without it testthat takes us for CRAN, and compares no snapshot.
export NOT_CRAN := true
# Without a locale R prints only ASCII.
ifeq ($(shell uname)$(LC_ALL)$(LC_CTYPE)$(LANG),Linux)
export LANG := C.UTF-8
endif

PYTHON_CODE := inst/python python tools
SHELL_CODE := --external-sources inst/places/*.sh tools/*.sh python/tests/support/*.sh
RUFF := .venv/bin/python -m ruff
RUFF_CONFIG := --config python/pyproject.toml
PYTEST := .venv/bin/python -m pytest -q
# One file's tests share a process, and with it TensorFlow; the longest files come first. Three
# processes for two cores, as an eighth of their time is waiting for children, servers and time-outs;
# two beside R, as each imports Keras and JAX anew.
PROCESSES := 3
test test-all: PROCESSES := 2
PARALLEL = -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
# Packages whose tests make models.
MAKE_MODELS := accelerate checkpoint explain export many models search serving training tuner
# Those that train them, and all that ask for the kind of device.
TRAINS := engine training
PRETENDING := engine $(MAKE_MODELS)
SOME_PRETENDING = $(MAKE) --no-print-directory test-pretend PRETENDING="$(TRAINS)" OPTIONS=
TESTTHAT := Rscript tools/test_r.R
# lintr takes chunks out of files that end in .Rmd.
LINTR := Rscript -e 'live <- tempfile(); dir.create(live); \
	files <- c(".lintr", Sys.glob("vignettes/*.orig")); \
	invisible(file.copy(files, file.path(live, sub("[.]orig$$", "", basename(files))))); \
	lints <- c(list(lintr::lint_package()), \
	lapply(c("tools", "python", live), lintr::lint_dir, relative_path = FALSE)); \
	for (l in lints) print(l); quit(status = any(lengths(lints) > 0))'
# The folders are in the list too, because removing a file changes only its folder.
PACKAGE_FILES := $(wildcard DESCRIPTION NAMESPACE) $(shell find R inst man \
	! -path '*__pycache__*' 2>/dev/null)
# Inside the installed package, so that it cannot outlive it.
INSTALLED := .rlib/gpukeras/.installed

.DEFAULT_GOAL := help
.PHONY: help demo gallery test test-all test-plan test-fast test-slow test-python test-r test-nightly test-precisions test-pretend test-cards test-peer test-faults test-newest test-matrix \
	coverage lint format doc vignettes site \
	check check-matrix bench bench-fit bench-bound bench-data bench-profile bench-scale \
	bench-compression bench-serve bench-tabular bench-accelerate gpu-evidence gpu-programs contract .aot/complete install clean
# What a target needs is installed before anything uses it, even under make -j.
.NOTPARALLEL:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 18

demo: setup-demo install ## install what is missing and show what gpukeras does
	@Rscript tools/demo.R

gallery: setup-demo install ## draw the pictures of README
	@Rscript tools/gallery.R

# Both suites side by side, as each leaves a core idle for half of its time; Python gives way to R,
# whose tests are one process and would end last. What pytest says comes last.
test: LANE := not nightly and not slow
test: MINUTES := 6
test-all: LANE := not nightly
test-all: MINUTES := 25
test-all: export GPUKERAS_TESTS := all
test: LAST := true
test-all: LAST = $(SOME_PRETENDING)
test: test-plan setup-test install ## run a test of every promise, Python and R
test-all: test-plan setup-test install ## run all tests that are not nightly, Python and R
test test-all:
	@echo "gpukeras test: all is installed. Now runs" \
	"$$(find python/tests -name 'test_*.py' | wc -l) files of Python's tests and, beside them," \
	"$$(ls tests/testthat/test-*.R | wc -l) of R's: some $(MINUTES) minutes on two cores." \
	"R's dots come first, Python's at the end."
	@logs=$$(mktemp -d); failed=0; \
	nice -n 5 $(PYTEST) $(PARALLEL) -m "$(LANE)" --junitxml $$logs/python.xml python/tests >$$logs/1 2>&1 & one=$$!; \
	trap 'kill $$one 2>/dev/null; rm -rf "$$logs"' EXIT; \
	GPUKERAS_TESTS_FOUND=$$logs/r.tsv $(TESTTHAT) || failed=1; \
	wait $$one || failed=1; cat $$logs/1; $(LAST) || failed=1; \
	.venv/bin/python tools/sum_up_tests.py $$logs/python.xml $$logs/r.tsv; exit $$failed

test-plan:
	@echo "gpukeras test: first installs what is missing, which takes minutes the first time."

# What `make test-all` has beyond `make test`.
test-slow: setup-test install ## run the tests that go deeper than those of make test
	@failed=0; $(PYTEST) $(PARALLEL) -m "slow and not nightly" python/tests || failed=1; \
	GPUKERAS_TESTS=slow $(TESTTHAT) || failed=1; \
	$(SOME_PRETENDING) || failed=1; exit $$failed

# What starts neither TensorFlow nor a process; R with a core that is made up. Run it first. In one
# process: to collect the tests in each of two would take longer than half of them.
test-fast: setup-test install ## run the tests that are quick, some half a minute
	@$(PYTEST) -m "not tf and not process and not costly and not nightly and not slow" python/tests
	@GPUKERAS_TESTS=fast $(TESTTHAT)

test-python: setup-test-python ## run the tests of the Python core, slow ones too
	@$(PYTEST) $(PARALLEL) python/tests

test-r: setup-test-r install ## run the tests of the R package, slow ones too
	@GPUKERAS_TESTS=all $(TESTTHAT)

# OPTIONS such as -k fuzz. R's tests run with their long tables, the others of them too.
test-nightly: setup-test-nightly install ## run the long tables of cases, and search for unknown defects (hours)
	@failed=0; GPUKERAS_TESTS=nightly $(TESTTHAT) || failed=1; \
	$(PYTEST) -m "nightly or hypothesis" --hypothesis-profile=nightly python/tests $(OPTIONS) || \
	failed=1; $(MAKE) --no-print-directory test-pretend || failed=1; exit $$failed

# What makes models, under the precisions that GPUs choose, on the CPU. OPTIONS such as -k stack.
test-precisions: setup-test-python ## run the tests that make models under mixed_bfloat16 and mixed_float16 (12 minutes)
	@failed=0; for policy in mixed_bfloat16 mixed_float16; do \
	$(PYTEST) $(PARALLEL) --precision $$policy $(addprefix python/tests/, $(MAKE_MODELS)) $(OPTIONS) || \
	failed=1; done; exit $$failed

# What asks for the device, where a part of the CPU plays a GPU. `make test-slow` runs TRAINS alone.
# OPTIONS such as -k stack, or --precision mixed_bfloat16.
test-pretend: setup-test-python ## run the tests that make models as if there were a GPU, on TensorFlow and JAX (15 minutes)
	@failed=0; for backend in tensorflow jax; do \
	KERAS_BACKEND=$$backend $(PYTEST) $(PARALLEL) --pretend-gpu -m "not nightly and not slow" \
	$(addprefix python/tests/, $(PRETENDING)) $(OPTIONS) || failed=1; \
	done; exit $$failed

# JAX's compiler for NVIDIA GPUs that are not here: 306 MB of downloads, 1.3 GB. Its
# stamp is the list, as in .venv: a checkout makes every file new. .aot may be a link to another's.
AOT := inst/python/gpukeras/profiler/aot/requirements.txt
.aot/complete: setup-test-python
	@cmp -s $(AOT) $@ || { \
	{ test -x .aot/bin/python || .venv/bin/python -m venv .aot; } && \
	.aot/bin/python -m pip install -q -r $(AOT) && cp $(AOT) $@; }

test-cards: .aot/complete ## run the tests that compile for GPUs that are not here
	@$(PYTEST) python/tests/profiler/aot python/tests/profiler/cost python/tests/gpu_programs $(OPTIONS)

# OPTIONS such as --card T4 H100, --model mlp or --kind train.
gpu-programs: .aot/complete ## check what JAX would run on five cards, compiled without one (half an hour)
	@PYTHONPATH=inst/python .aot/bin/python python/gpu_programs/check_programs.py $(OPTIONS)

# KERAS_SOURCE is a git clone or an unpacked tree of the installed version. OPTIONS such as
# --engines auto,keras or --only early_stopping.
test-peer: setup-test-python ## run Keras' own tests through gpukeras, from KERAS_SOURCE (an hour)
	@KERAS_SOURCE="$(KERAS_SOURCE)" .venv/bin/python python/peer/peer.py $(OPTIONS)

# OPTIONS such as --number 20, --seed 2, --only tuner/ --tests python/tests/tuner, or --records FOLDER,
# which goes on where it ended.
test-faults: setup-coverage ## make small faults in the core, one at a time, and see which tests find them (an hour and a half)
	@.venv/bin/python python/faults/faults.py $(OPTIONS)

# PYTHON names another Python than the newest there is. OPTIONS such as python/tests/engine.
test-newest: ## run Python's tests on keras-nightly and the newest TensorFlow and JAX, unreleased ones too (half an hour)
	@PYTHON="$(PYTHON)" tools/newest.sh $(or $(OPTIONS),python/tests)

test-matrix: ## run all tests on Debian 13: R 4.5, Python 3.13, NumPy 2 (needs root)
	@tools/debian13.sh test-all

coverage: setup-coverage ## count the lines that the tests run, Python and R (some 40 minutes)
	@tools/coverage.sh $(SIDE)

lint: setup-lint install ## check style and types of the code with ruff, mypy, lintr, hadolint and shellcheck
	@failed=0; $(RUFF) check $(RUFF_CONFIG) $(PYTHON_CODE) || failed=1; \
	$(RUFF) format --check $(RUFF_CONFIG) $(PYTHON_CODE) || failed=1; \
	(cd python && PYTHONPATH=../inst/python ../.venv/bin/lint-imports) || failed=1; \
	.venv/bin/python -m mypy --config-file python/pyproject.toml || failed=1; \
	.venv/bin/hadolint inst/places/Dockerfile* || failed=1; \
	.venv/bin/shellcheck $(SHELL_CODE) || failed=1; \
	$(LINTR) || failed=1; exit $$failed

format: setup-format ## format the code with ruff, and with styler if R has it
	@$(RUFF) check --fix-only $(RUFF_CONFIG) $(PYTHON_CODE)
	@$(RUFF) format $(RUFF_CONFIG) $(PYTHON_CODE)
	@if command -v Rscript >/dev/null; then \
	Rscript -e 'if (requireNamespace("styler", quietly = TRUE)) styler::style_pkg()'; fi

# The vignettes come late: they load the package that roxygen2 has just documented.
doc: setup-doc ## write man/ and NAMESPACE from the code; run all examples; vignettes and cheat sheet to doc/
	@Rscript -e 'roxygen2::roxygenise()'
	@$(MAKE) --no-print-directory install
	@Rscript tools/vignettes.R doc
	@Rscript tools/examples.R
	@! command -v chromium >/dev/null || tools/cheatsheet.sh doc/cheatsheet.pdf

vignettes: setup-doc install ## compute the pages of vignettes that are older than their sources (a minute each)
	@Rscript tools/precompute.R $(OPTIONS)

site: setup-site install ## build the pages of pkgdown in doc/site
	@Rscript tools/site.R doc/site

check: setup-check ## run R CMD check --as-cran on the package, without Python and with it
	@tools/check.sh without-python
	@tools/check.sh

check-matrix: check ## run R CMD check --as-cran here and on Debian 13 (needs root)
	@tools/debian13.sh check

# OPTIONS such as --quick, --only dense_small or --json PATH; bench is another name for it. Promises
# are judged on a quiet computer only; what other processes took is in each record.
bench: bench-fit

bench-fit: setup-bench install ## measure gpukeras against Keras from R, on both backends (an hour)
	@Rscript python/benchmarks/bench_fit.R $(OPTIONS)

# OPTIONS such as --only small_frozen or --repeats 1.
bench-bound: setup-bench ## measure whether gpukeras is ever slower than Keras (5 minutes, idle computer)
	@PYTHONPATH=inst/python:python/benchmarks:python/peer .venv/bin/python \
	python/benchmarks/bench_bound.py $(OPTIONS)

# OPTIONS such as --quick or --only csv; the files for memory take 4 GiB each in TMPDIR.
bench-data: setup-test install ## measure how data reaches a fit, against the usual ways
	@PYTHONPATH=inst/python:python/benchmarks:python/tests/support .venv/bin/python \
	python/benchmarks/bench_data.py $(OPTIONS)

bench-profile: setup-bench ## measure whether monitor and profile tell the truth, and what they cost
	@PYTHONPATH=inst/python:python/benchmarks .venv/bin/python \
	python/benchmarks/bench_profile.py $(OPTIONS)

bench-scale: setup-bench ## measure what several workers cost, and reckon with hundreds of GPUs
	@PYTHONPATH=inst/python:python/benchmarks .venv/bin/python python/benchmarks/bench_scale.py \
	$(OPTIONS)

bench-compression: setup-bench ## measure what smaller models gain and lose, on handwritten digits
	@PYTHONPATH=inst/python:python/benchmarks .venv/bin/python \
	python/benchmarks/bench_compression.py $(OPTIONS)

# OPTIONS such as --only diamonds or --epochs 1.
bench-many: setup-test-python ## measure many models at once against one after another (some minutes)
	@PYTHONPATH=inst/python:python/benchmarks .venv/bin/python python/benchmarks/bench_many.py $(OPTIONS)

# OPTIONS such as --clients 16 or --seconds 30.
bench-serve: setup-test-python ## measure a server of predictions under 64 clients (half a minute)
	@PYTHONPATH=inst/python:python/benchmarks .venv/bin/python python/benchmarks/bench_serve.py $(OPTIONS)

# OPTIONS such as --quick, --seeds 2 or --only concrete; without a GPU the transformer takes most of
# the time. --json FILE keeps the runs and goes on from them.
bench-tabular: setup-bench ## compare networks for tables with boosted trees (hours without a GPU)
	@.venv/bin/python -m pip install --quiet -r python/benchmarks/requirements-tabular.txt
	@PYTHONPATH=inst/python:python/benchmarks .venv/bin/python \
	python/benchmarks/bench_tabular.py $(OPTIONS)

# KERAS3_SOURCE is an unpacked tree of keras3; R needs keras3, tensorflow and tfdatasets. OPTIONS
# such as --only getting_started.
bench-accelerate: setup-bench install ## run keras3's guides under accelerate(), for a vignette (2 hours)
	@Rscript python/benchmarks/bench_accelerate.R "$(KERAS3_SOURCE)" $(OPTIONS)

# The Python core alone. BACKEND=jax proves it through JAX. EVIDENCE_PYTHON names a Python that has
# TensorFlow (or JAX with CUDA, and Keras) and pytest already. OPTIONS such as --only dense_small or
# --seconds 300; --on-cpu --quick tries it without a GPU.
gpu-evidence: ## on a computer with an NVIDIA GPU: prove and measure it, in 10 minutes at most
	@if [ -z "$(EVIDENCE_PYTHON)" ]; then tools/setup.sh test-python; fi
	@PYTHONPATH=inst/python TF_CPP_MIN_LOG_LEVEL=2 $(or $(EVIDENCE_PYTHON),.venv/bin/python) \
	python/benchmarks/gpu_evidence.py $(if $(BACKEND),--backend $(BACKEND)) $(OPTIONS)

# Renamed only when complete, so that a failure leaves the old contract in place.
contract: setup-contract ## write inst/python/contract.json from the Python core
	@PYTHONPATH=inst/python .venv/bin/python -m gpukeras contract >inst/python/contract.json.new
	@mv inst/python/contract.json.new inst/python/contract.json

clean: ## remove what the targets made, except .venv
	rm -rf .rlib doc gpukeras.Rcheck gpukeras_*.tar.gz demo.png Rplots.pdf inst/python/contract.json.new
	rm -rf .hypothesis .ruff_cache .mypy_cache .pytest_cache python/.pytest_cache
	find inst python tools -name __pycache__ -prune -exec rm -rf {} +

setup-%:
	@tools/setup.sh $*

install: $(INSTALLED)

# Without the lock an interrupted installation does not forbid the next one.
$(INSTALLED): $(PACKAGE_FILES)
	@echo "gpukeras setup: installing the R package into .rlib ..."
	@mkdir -p .rlib
	@R CMD INSTALL --no-multiarch --with-keep.source --no-lock --library=.rlib . \
	>.rlib/install.log 2>&1 || { cat .rlib/install.log; exit 1; }
	@touch $@
