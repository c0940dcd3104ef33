#!/bin/bash
# gpukeras in Ubuntu or Debian under WSL2, the only way in which TensorFlow uses a GPU of Windows.
# In the folder of gpukeras' sources, inside WSL: bash inst/places/wsl2.sh
#
# The NVIDIA driver is installed in Windows, never inside WSL: one of a distribution would hide the
# library that Windows lends. This script checks that, and installs the rest. It was not run under
# WSL2: gpukeras' tests read it, and run its checks on computers that are no WSL.
set -eu

stop() {
    echo "$*" >&2
    exit 1
}

[ -e DESCRIPTION ] || stop "Run it in the folder of gpukeras' sources."
grep -qi microsoft /proc/sys/kernel/osrelease || stop "This computer does not run under WSL."
[ -e /dev/dxg ] || stop "This is WSL1, or Windows lends no GPU: run 'wsl --update' in Windows," \
    "and 'wsl --set-version DISTRIBUTION 2' if 'wsl --list --verbose' says 1."
[ -e /usr/lib/wsl/lib/libcuda.so.1 ] || stop "Windows has no NVIDIA driver: install it there."
if dpkg --list 'libcuda1' 'libnvidia-compute-*' 2>/dev/null | grep -q '^ii'; then
    stop "A Linux driver is installed inside WSL, and hides that of Windows: remove its packages" \
        "(dpkg --list 'libcuda1' 'libnvidia-compute-*')."
fi

sudo apt-get update
sudo apt-get install --yes --no-install-recommends r-base-core r-cran-callr r-cran-cli \
    r-cran-jsonlite r-cran-reticulate r-cran-rlang python3-venv libpython3-dev
library=$(Rscript -e 'cat(Sys.getenv("R_LIBS_USER"))')
mkdir -p "$library"
R CMD INSTALL --library="$library" .
Rscript -e 'gpukeras::install_gpukeras(gpu = TRUE); print(gpukeras::gpu_check())'
