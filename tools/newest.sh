#!/bin/sh
# Runs Python's tests on what is newest, release candidates and nightly builds too: TensorFlow,
# keras-nightly and JAX. What they break for gpukeras is known before they are released.
#   tools/newest.sh [OPTION OF PYTEST ...]
# They are installed, or brought up to date, in .venv-newest, by PYTHON or the newest Python there is.
set -eu
cd "$(dirname "$0")/.."

speaker="gpukeras test-newest"
. tools/speak.sh

find_python() {
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3}; do
        "$candidate" -c 'import sys, venv; print(sys.executable)' 2>/dev/null && return
    done
    return 1
}

if [ ! -x .venv-newest/bin/python ]; then
    python=$(find_python) || stop "no Python from 3.12 on is here."
    say "making .venv-newest with $python ..."
    quietly "$python" -m venv --clear .venv-newest
fi

# What the tests need besides, in the versions that gpukeras asks for.
others=.venv-newest/others.txt
sed -e '/^tensorflow/d' -e '/^keras/d' -e '/^jax/d' -e '/^numpy/d' -e '/^-r/d' \
    python/requirements.txt python/requirements-dev.txt >$others
say "installing the newest packages into .venv-newest ..."
quietly .venv-newest/bin/python -m pip install --progress-bar off --disable-pip-version-check -r $others
quietly .venv-newest/bin/python -m pip install --progress-bar off --disable-pip-version-check --upgrade --pre \
    tensorflow-cpu keras-nightly jax
# keras and keras-nightly own the same files.
if .venv-newest/bin/python -m pip show --quiet keras 2>/dev/null; then
    quietly .venv-newest/bin/python -m pip uninstall --yes keras
    quietly .venv-newest/bin/python -m pip install --quiet --force-reinstall --no-deps --pre keras-nightly
fi
.venv-newest/bin/python - <<'END'
import platform
from importlib.metadata import version
names = ("tensorflow-cpu", "keras-nightly", "jax", "numpy")
print(f"Python {platform.python_version()},", ", ".join(f"{name} {version(name)}" for name in names))
END
exec .venv-newest/bin/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder \
    -m "not nightly and not slow" "$@"
