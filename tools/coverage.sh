#!/bin/sh
# Which lines the tests run, on both sides:  tools/coverage.sh [python | r]
#
# Prints a table of the files, worst first, and fails where a side has less than 90 % of its
# lines. Takes as long as `make test-all`, and half as long again.  Works in a copy of the tree, so
# that nothing of it is left behind.
set -eu
cd "$(dirname "$0")/.."
least=90
side=${1:-both}
root=$(pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

mkdir "$copy/gpukeras"
tar -cf - --exclude './.venv*' --exclude ./.rlib --exclude ./.git --exclude './.debian13*' . |
    tar -xf - -C "$copy/gpukeras"
cd "$copy/gpukeras"
failed=0

measure_python() {
    python=$root/.venv/bin/python
    config=--rcfile=python/pyproject.toml
    export COVERAGE_FILE="$copy/data/coverage"  # the tests' child processes write beside it
    mkdir "$copy/data"
    "$python" -m coverage run "$config" -m pytest -q -n 2 --dist loadfile python/tests \
        >"$copy/1" 2>&1 || { failed=1; tail -n 50 "$copy/1"; }
    "$python" -m coverage combine "$config" --quiet
    "$python" -m coverage report "$config" --fail-under=$least || failed=1
}

# covr installs the package with counters in its code, and runs the tests of that. Each process
# leaves its counts as it ends; one that a test kills may leave half of them, which covr cannot read.
# shellcheck disable=SC2016 # R expands them
measure_r() {
    GPUKERAS_TESTS=all LEAST=$least Rscript -e 'least <- as.numeric(Sys.getenv("LEAST"))
        library <- tempfile("library-")
        drop_halves <- bquote(for (file in Sys.glob(file.path(.(library), "covr_trace_*"))) {
            tryCatch(readRDS(file), error = function(condition) unlink(file))
        })
        found <- covr::package_coverage(".", type = "tests", quiet = TRUE,
            install_path = library, code = deparse(drop_halves))
        lines <- covr::tally_coverage(found, by = "line")
        files <- aggregate(value > 0 ~ filename, lines, function(x) c(length(x), sum(!x)))
        table <- data.frame(file = files[[1]], lines = files[[2]][, 1], missed = files[[2]][, 2])
        table$percent <- round(100 * (1 - table$missed / table$lines), 1)
        print(table[order(table$percent), ], row.names = FALSE)
        total <- 100 * mean(lines$value > 0)
        cat(sprintf("R: %.1f %% of %d lines\n", total, nrow(lines)))
        quit(status = total < least)' || failed=1
}

case $side in
    python) measure_python ;;
    r)      measure_r ;;
    both)   measure_python; measure_r ;;
    *)      echo "usage: tools/coverage.sh [python | r]" >&2; exit 2 ;;
esac
exit $failed
