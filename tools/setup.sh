#!/bin/sh
# Installs what one make target needs:  tools/setup.sh TARGET
#
# R and its packages come from Debian, Python packages from PyPI into .venv.
# Each run first looks at what is there, so a run with nothing to install takes
# well under a second and needs no network.  Where this script may not install
# (not root, or no apt-get) it says in one sentence what is missing, and stops.
# What a target can do without is only useful: it is tried once, one by one, and
# where it cannot be installed a sentence says what is left out for it.
set -eu
cd "$(dirname "$0")/.."

speaker="gpukeras setup"
. tools/speak.sh

# ---- What the target needs ---------------------------------------------------
# R packages under their CRAN names, programs under the names of both the
# command and the Debian package.

to_run="reticulate callr cli rlang jsonlite"
to_test="$to_run testthat withr"
# Tests that need one of them are skipped without it.
seen="ggplot2 bit64 future generics MASS Matrix nnet png recipes rsample RSQLite survival dbplyr RPostgreSQL"
# Build the images of inst/places without root, and run a Slurm of two computers.
places="buildah mmdebstrap uidmap slurmctld slurmd munge iproute2"
r_packages="" programs="" python_tools=no compiler=no
useful_r="" useful_programs=""

case ${1:-} in
    demo | bench) r_packages=$to_run useful_r="ggplot2" ;;
    test)         r_packages=$to_test python_tools=yes compiler=yes
                  useful_r=$seen useful_programs="chromium postgresql" ;;
    test-nightly) r_packages=$to_test python_tools=yes compiler=yes
                  useful_r=$seen useful_programs="chromium postgresql $places" ;;
    test-r)       r_packages=$to_test useful_r=$seen useful_programs="chromium postgresql" ;;
    test-python)  python_tools=yes compiler=yes useful_programs="postgresql" ;;
    contract)     ;;
    format)       python_tools=yes ;;
    lint)         r_packages="$to_test lintr" useful_r=$seen python_tools=yes ;;
    coverage)     r_packages="$to_test covr" python_tools=yes compiler=yes
                  useful_r=$seen useful_programs="chromium postgresql" ;;
    doc)          r_packages="$to_test $seen roxygen2 knitr rmarkdown" programs="pandoc"
                  useful_programs="chromium" ;;
    site)         r_packages="$to_run ggplot2 knitr rmarkdown pkgdown" programs="pandoc" ;;
    check)        r_packages="$to_test knitr rmarkdown" programs="pandoc"
                  useful_r="$seen V8" useful_programs="tidy" ;;
    *)            stop "unknown target '${1:-}'; 'make help' lists the targets." ;;
esac

# ---- What is missing from the computer -----------------------------------------

# Asks R itself, because packages may come from Debian, CRAN or .rlib.
missing_r_packages() {
    # shellcheck disable=SC2086 # one argument for each package
    Rscript --no-init-file -e 'p <- commandArgs(TRUE)
        cat(p[!nzchar(vapply(p, function(x) system.file(package = x), ""))])' $r_packages $useful_r
}

# Prints those words of the first list that are (yes) or are not (no) in the second.
select_words() {
    for word in $2; do
        case " $3 " in
            *" $word "*) if [ "$1" = yes ]; then printf '%s ' "$word"; fi ;;
            *)           if [ "$1" = no ]; then printf '%s ' "$word"; fi ;;
        esac
    done
}

count() { echo $#; }

# Prints the Debian packages of R packages; Debian writes Matrix in lower case.
name_in_debian() {
    for package in $1; do
        printf 'r-cran-%s ' "$(echo "$package" | tr '[:upper:]' '[:lower:]')"
    done
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

# By a Debian package's name. Some programs have another, or lie off the path of users.
has_program() {
    case $1 in
        postgresql) ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && return ;;
        uidmap)     set -- newuidmap ;;
        iproute2)   set -- ip ;;
    esac
    command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]
}

look() {
    lacks_r=no no_r_packages="" no_programs="" lacks_python=no no_useful=""
    if [ -n "$r_packages" ]; then
        if command -v Rscript >/dev/null; then
            absent=$(missing_r_packages)
        else
            lacks_r=yes absent="$r_packages $useful_r"
        fi
        no_r_packages=$(select_words no "$absent" "$useful_r")
        no_r_packages=${no_r_packages% }
        no_useful=$(name_in_debian "$(select_words yes "$absent" "$useful_r")")
    fi
    for program in $programs; do
        command -v "$program" >/dev/null || no_programs="$no_programs $program"
    done
    for program in $useful_programs; do
        has_program "$program" || no_useful="$no_useful$program "
    done
    if [ $compiler = yes ] && ! can_compile; then no_programs="$no_programs gcc libc6-dev"; fi
    # A virtual environment breaks when its interpreter is removed or replaced.
    if ! has_modules pip; then
        python=$(find_python) || lacks_python=yes
    fi
}

nothing_missing() { [ "$lacks_r$no_r_packages$no_programs$lacks_python" = nono ]; }

may_install() { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; }

listed=no
list_debian_packages() {
    export DEBIAN_FRONTEND=noninteractive
    if [ $listed = no ]; then
        say "reading the list of Debian packages ..."
        "$@" apt-get update
        listed=yes
    fi
}

install_from_debian() {
    list_debian_packages quietly

    packages=$no_programs
    if [ $lacks_r = yes ]; then packages="$packages r-base-core"; fi
    packages="$packages $(name_in_debian "$no_r_packages")"
    if [ $lacks_python = yes ]; then
        # R loads Python as a shared library, which Debian packages on its own.
        packages="$packages python3-venv $(apt-cache depends python3 |
            sed -n 's/^ *Depends: \(python3\.[0-9]*\)$/lib\1/p')"
    fi

    # shellcheck disable=SC2086 # one argument for each package
    say "installing from Debian ($(count $packages), some minutes):" $packages "..."
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
    if may_install; then
        install_from_debian
        look
    fi
    nothing_missing || tell_what_is_missing
fi

# ---- What is useful ----------------------------------------------------------------

# What could not be installed, a name a line: tried again once the file is gone (make clean).
refused=.rlib/.refused

is_refused() { [ -e $refused ] && grep -qx "$1" $refused; }

# What is left out without it.
left_out() {
    case $1 in
        chromium)       echo "no page is opened in a browser, and no PDF is made of one" ;;
        tidy)           echo "the HTML of the help pages is not validated" ;;
        postgresql)     echo "no rows come from a PostgreSQL server" ;;
        buildah | mmdebstrap | uidmap)         echo "no image is built" ;;
        slurmctld | slurmd | munge | iproute2) echo "no Slurm is started" ;;
        r-cran-v8)      echo "formulas in help pages are not rendered" ;;
        r-cran-ggplot2) echo "plots are drawn by base R alone" ;;
        *)              echo "tests that need it are skipped" ;;
    esac
}

# PostgreSQL's installation would make a server of its own and start it; the tests start theirs.
# Where systemd starts services, those of Slurm are switched off again.
install_useful() {
    no_server=/etc/postgresql-common/createcluster.d/gpukeras.conf
    if [ "$1" = postgresql ]; then
        mkdir -p "${no_server%/*}"
        echo "create_main_cluster = false" >"$no_server"
    fi
    installed=yes
    silently apt-get install --yes --no-install-recommends "$1" || installed=no
    rm -f "$no_server"
    case $1 in
        munge | slurmctld | slurmd) systemctl disable --now "$1" >/dev/null 2>&1 || true ;;
    esac
    [ $installed = yes ]
}

# One by one: what cannot be installed leaves the others alone.
# shellcheck disable=SC2086 # one argument for each package
useful_count=$(count $no_useful) useful_number=0
for package in $no_useful; do
    useful_number=$((useful_number + 1))
    if may_install && ! is_refused "$package"; then
        list_debian_packages silently || true
        say "installing from Debian ($useful_number of $useful_count that are optional): $package ..."
        if install_useful "$package"; then continue; fi
        mkdir -p .rlib
        echo "$package" >>$refused
        say "it cannot be installed here, which $refused remembers."
    fi
    say "goes on without $package: $(left_out "$package")."
done

# ---- The virtual environment -----------------------------------------------------

if ! has_modules pip; then
    say "making the virtual environment .venv with $python ..."
    quietly "$python" -m venv --clear .venv
fi

# The CUDA libraries are gigabytes, so they come only where a driver can use them:
# on Linux, or on Linux under Windows, whose driver lies in /usr/lib/wsl; or where
# GPUKERAS_CUDA=yes says so, as for an image that will run elsewhere.
has_nvidia_driver() {
    [ "${GPUKERAS_CUDA:-no}" = yes ] || [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidia0 ] ||
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
    wanted=$(grep -cv '^#\|sys_platform !=' "$stamp.new")
    say "installing Python packages into .venv ($wanted, some minutes): $* ..."
    # tensorflow and tensorflow-cpu own the same files: remove one before the other.
    if [ -e "$stamp" ] && [ "$(grep ^tensorflow "$stamp")" != "$(grep ^tensorflow "$stamp.new")" ]; then
        quietly .venv/bin/python -m pip uninstall --yes tensorflow tensorflow-cpu
    fi
    quietly .venv/bin/python -m pip install --progress-bar off --disable-pip-version-check \
        -r "$stamp.new"
    mv "$stamp.new" "$stamp"
}

install_python requirements.txt tensorflow numpy psutil pynvml pyarrow
if [ $python_tools = yes ]; then
    install_python requirements-dev.txt pytest hypothesis xdist importlinter mypy ruff coverage
fi
