#!/bin/bash
# gpukeras for all users of a Posit Workbench (or RStudio Server), in one environment of Python.
# In the folder of gpukeras' sources, as root, for each R of the server:
#
#     R=/opt/R/4.4.2/bin/R bash inst/places/workbench.sh
#
# It installs the package into R's own library, an environment with TensorFlow into /opt/gpukeras,
# and writes RETICULATE_PYTHON to R's Renviron.site, which sessions read, those of jobs too. A user
# who sets RETICULATE_PYTHON in ~/.Renviron takes another Python. Where sessions run in containers
# (Kubernetes, Slurm), do it in the image of the sessions.
# It was not run on a Workbench: gpukeras' tests read it only.
set -eu

r=${R:-R}
environment=${GPUKERAS_ENVIRONMENT:-/opt/gpukeras}

stop() {
    echo "$*" >&2
    exit 1
}

[ -e DESCRIPTION ] || stop "Run it in the folder of gpukeras' sources."
[ "$(id -u)" = 0 ] || stop "Only root may write to R's library and to Renviron.site."

missing='p <- c("callr", "cli", "jsonlite", "reticulate", "rlang")
p <- p[!nzchar(vapply(p, function(x) system.file(package = x), ""))]
if (length(p) > 0) install.packages(p, lib = .Library)'
"$r" --no-echo --vanilla -e "$missing"
"$r" CMD INSTALL --library="$("$r" RHOME)/library" .
"$r" --no-echo --vanilla -e "gpukeras::install_gpukeras('$environment')"
chmod -R go+rX "$environment"

site="$("$r" RHOME)/etc/Renviron.site"
touch "$site"
sed -i '/^RETICULATE_PYTHON=/d' "$site"
echo "RETICULATE_PYTHON=$environment/bin/python" >>"$site"
"$r" --no-echo --no-save -e 'print(gpukeras::gpu_check())'
