#!/bin/sh
# R CMD check --as-cran on the package; fails unless it says "Status: OK", or notes nothing but that
# the package is larger than 5 MB because of the folders python, doc and R, see cran-comments.md. What
# it said is then in gpukeras.Rcheck.
#   tools/check.sh [without-python]
# without-python is what repositories have: no Python is chosen or found in an environment, and R's
# own libraries are all there are. Nothing that needs TensorFlow may run, and nothing may fail.
#
# R CMD build first copies the folder whole, so it gets one without gigabytes of .venv.  The vignettes
# show what `make vignettes` computed, and run nothing.  Without a network CRAN's list of packages,
# the time of day and the packages that only CRAN has cannot be looked at.  How long examples take is
# told by make doc: here they start TensorFlow, which CRAN, without Python, does not.
set -eu
cd "$(dirname "$0")/.."
top=$PWD failed=
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/gpukeras"
tar -cf - --exclude './.venv*' --exclude ./.rlib --exclude ./.git --exclude './.debian13*' . |
    tar -xf - -C "$copy/gpukeras"
cd "$copy"
unset NOT_CRAN

# What R would note for want of a program is left out; tools/setup.sh has said so.
has_v8() { Rscript --no-init-file -e 'quit(status = !nzchar(system.file(package = "V8")))'; }
if ! has_v8; then export _R_CHECK_RD_MATH_RENDERING_=false; fi
if ! command -v tidy >/dev/null; then export _R_CHECK_RD_VALIDATE_RD2HTML_=false; fi
# It would make PDF files in inst/doc smaller. There is none, and R warns without it all the same.
if ! command -v qpdf >/dev/null; then R_QPDF=$(command -v true) && export R_QPDF; fi

export _R_CHECK_CRAN_INCOMING_REMOTE_=false _R_CHECK_SYSTEM_CLOCK_=false TZ="${TZ:-UTC}"
export _R_CHECK_PACKAGE_DEPENDS_IGNORE_MISSING_ENHANCES_=true _R_CHECK_FORCE_SUGGESTS_=false
export _R_CHECK_EXAMPLE_TIMING_THRESHOLD_=600  # a busy computer is no fault of theirs
if [ "${1:-}" = without-python ]; then
    unset R_LIBS RETICULATE_PYTHON RETICULATE_PYTHON_ENV RETICULATE_PYTHON_FALLBACK VIRTUAL_ENV CONDA_PREFIX
    mkdir "$copy/home" "$copy/library"
    export HOME="$copy/home" WORKON_HOME="$copy/home/none" R_LIBS_USER="$copy/library"
fi
R CMD build gpukeras
R CMD check --as-cran --no-manual gpukeras_*.tar.gz || failed=1
rm -rf "$top/gpukeras.Rcheck"
mkdir "$top/gpukeras.Rcheck"
find gpukeras.Rcheck -maxdepth 1 -type f -exec cp {} "$top/gpukeras.Rcheck" ';'
cp -r gpukeras.Rcheck/tests "$top/gpukeras.Rcheck"
if [ -n "$failed" ]; then exit 1; fi
left=$([ ! -d "$copy/home" ] || find "$copy/home" -mindepth 1)
if [ -n "$left" ]; then echo "left in the home folder: $left" && exit 1; fi

# The note, as R before 4.5 words it; one of the others that grows to a megabyte is one line more.
log=gpukeras.Rcheck/00check.log
if grep -x 'Status: OK' "$log"; then exit 0; fi
size=$(sed -n '/^\* checking installed package size \.\.\. NOTE$/,/^\* /p' "$log" | sed '1d;$d' | tr -s ' 0-9' ' #' |
    sed -E '/^ (R|doc) #\.#Mb$/d')
echo "$size"
test "$size" = " installed size is #.#Mb
 sub-directories of #Mb or more:
 python #.#Mb"
grep -x 'Status: 1 NOTE' "$log"
