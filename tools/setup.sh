#!/bin/sh
# Installs what one make target needs:  tools/setup.sh TARGET
#
# R and its packages come from Debian, Python packages from PyPI into .venv.
# Each run first looks at what is there, so a run with nothing to install takes
# well under a second and needs no network.  Where this script may not install
# (not root, or no apt-get) it says in one sentence what is missing, and stops.
set -eu
cd "$(dirname "$0")/.."

speaker="gpukeras setup"
. tools/speak.sh

# ---- What the target needs ---------------------------------------------------
# R packages under their CRAN names, programs under the names of both the
# command and the Debian package.

to_run="reticulate callr cli rlang jsonlite ggplot2"
to_test="$to_run bit64 Matrix png recipes testthat withr"
r_packages="" programs="" python_tools=no compiler=no

case ${1:-} in
    demo | bench) r_packages=$to_run ;;
    test)         r_packages=$to_test python_tools=yes compiler=yes programs="chromium" ;;
    test-r)       r_packages=$to_test programs="chromium" ;;
    test-python)  python_tools=yes compiler=yes ;;
    contract)     ;;
    format)       python_tools=yes ;;
    lint)         r_packages="$to_test lintr" python_tools=yes ;;
    coverage)     r_packages="$to_test covr" python_tools=yes compiler=yes programs="chromium" ;;
    doc)          r_packages="$to_test roxygen2 knitr rmarkdown" programs="pandoc chromium" ;;
    site)         r_packages="$to_run knitr rmarkdown pkgdown" programs="pandoc" ;;
    check)        r_packages="$to_test knitr rmarkdown V8" programs="pandoc qpdf tidy" ;;
    *)            stop "unknown target '${1:-}'; 'make help' lists the targets." ;;
esac

# ---- What is missing from the computer -----------------------------------------

# Asks R itself, because packages may come from Debian, CRAN or .rlib.
missing_r_packages() {
    # shellcheck disable=SC2086 # one argument for each package
    Rscript --no-init-file -e 'p <- commandArgs(TRUE)
        cat(p[!nzchar(vapply(p, function(x) system.file(package = x), ""))])' $r_packages
}

has_modules() {
    .venv/bin/python -c 'import sys, importlib.util as u
sys.exit(None in map(u.find_spec, sys.argv[1:]))' "$@" 2>/dev/null
}

# The tests build stand-ins for the driver's libraries, which takes C's headers too.
can_compile() { echo 'int x;' | cc -shared -xc -include stdlib.h -o /dev/null - 2>/dev/null; }

# reticulate before 1.38 refuses NumPy 2, without which there is no Python 3.13.
refuses_numpy2() {
    command -v Rscript >/dev/null && Rscript --no-init-file -e 'quit(status =
        !nzchar(system.file(package = "reticulate")) || packageVersion("reticulate") >= "1.38")'
}

# Prints the real interpreter: a pyenv shim would follow the user's later choices.
find_python() {
    newest=13
    if refuses_numpy2; then newest=12; fi
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
        "$candidate" tools/setup-python.py $newest 2>/dev/null && return
    done
    return 1
}

look() {
    lacks_r=no no_r_packages="" no_programs="" lacks_python=no
    if [ -n "$r_packages" ]; then
        if command -v Rscript >/dev/null; then
            no_r_packages=$(missing_r_packages)
        else
            lacks_r=yes no_r_packages=$r_packages
        fi
    fi
    for program in $programs; do
        command -v "$program" >/dev/null || no_programs="$no_programs $program"
    done
    if [ $compiler = yes ] && ! can_compile; then no_programs="$no_programs gcc libc6-dev"; fi
    # A virtual environment breaks when its interpreter is removed or replaced.
    if ! has_modules pip; then
        python=$(find_python) || lacks_python=yes
    fi
}

nothing_missing() { [ "$lacks_r$no_r_packages$no_programs$lacks_python" = nono ]; }

install_from_debian() {
    export DEBIAN_FRONTEND=noninteractive
    say "reading the list of Debian packages ..."
    quietly apt-get update

    packages=$no_programs
    if [ $lacks_r = yes ]; then packages="$packages r-base-core"; fi
    for package in $no_r_packages; do  # Debian writes Matrix in lower case
        packages="$packages r-cran-$(echo "$package" | tr '[:upper:]' '[:lower:]')"
    done
    if [ $lacks_python = yes ]; then
        # R loads Python as a shared library, which Debian packages on its own.
        packages="$packages python3-venv $(apt-cache depends python3 |
            sed -n 's/^ *Depends: \(python3\.[0-9]*\)$/lib\1/p')"
    fi

    say "installing from Debian:$packages ..."
    # shellcheck disable=SC2086 # one argument for each package
    quietly apt-get install --yes --no-install-recommends $packages
}

# One sentence for everything that the user must install.
tell_what_is_missing() {
    wants=""
    want() { wants="$wants${wants:+; }$*"; }
    if [ $lacks_r = yes ]; then want "R is missing (https://cran.r-project.org)"; fi
    if [ -n "$no_r_packages" ]; then
        names=$(echo "$no_r_packages" | sed 's/ /, /g')
        quoted=$(echo "$names" | sed 's/[^, ][^, ]*/"&"/g')
        want "R packages $names are missing, install them with install.packages(c($quoted))"
    fi
    if [ -n "$no_programs" ]; then want "programs missing:$no_programs"; fi
    if [ $lacks_python = yes ]; then
        want "Python 3.10 to 3.13 (3.12 where reticulate is older than 1.38)" \
            "with venv and a shared libpython is missing"
    fi
    stop "$wants."
}

look
if ! nothing_missing; then
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        install_from_debian
        look
    fi
    nothing_missing || tell_what_is_missing
fi

# ---- The virtual environment -----------------------------------------------------

if ! has_modules pip; then
    say "making the virtual environment .venv with $python ..."
    quietly "$python" -m venv --clear .venv
fi

# The CUDA libraries are gigabytes, so they come only where a driver can use them:
# on Linux, or on Linux under Windows, whose driver lies in /usr/lib/wsl.
has_nvidia_driver() {
    [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidia0 ] ||
        { [ -e /dev/dxg ] && ls /usr/lib/wsl/lib/libcuda.so* >/dev/null 2>&1; }
}

requirements() {
    changes=""
    if has_nvidia_driver; then changes="s/^tensorflow-cpu/tensorflow[and-cuda]/;"; fi
    if refuses_numpy2; then changes="${changes}s/^\\(numpy.*\\),<3/\\1,<2/;"; fi
    sed "$changes" "python/$1"
}

# install_python FILE MODULE...: installs what FILE asks for.  Its stamp is the copy
# of FILE in .venv, written once pip is done; the modules show that it does not lie.
install_python() {
    stamp=.venv/$1
    requirements "$1" >"$stamp.new"
    shift
    if cmp -s "$stamp" "$stamp.new" && has_modules "$@"; then
        rm "$stamp.new"
        return
    fi
    say "installing Python packages into .venv: $* (some minutes the first time) ..."
    # tensorflow and tensorflow-cpu own the same files: remove one before the other.
    if [ -e "$stamp" ] && [ "$(grep ^tensorflow "$stamp")" != "$(grep ^tensorflow "$stamp.new")" ]; then
        quietly .venv/bin/python -m pip uninstall --yes tensorflow tensorflow-cpu
    fi
    quietly .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$stamp.new"
    mv "$stamp.new" "$stamp"
}

install_python requirements.txt tensorflow numpy psutil pynvml pyarrow
if [ $python_tools = yes ]; then
    install_python requirements-dev.txt pytest hypothesis ruff coverage
fi
