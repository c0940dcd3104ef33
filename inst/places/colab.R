# gpukeras on Google Colab, in a notebook whose runtime is R, with a GPU (Runtime > Change runtime
# type). Upload gpukeras' source package and this file in the panel "Files". In the first cell set
# `package` to the path of the package (gpukeras_0.1.0.tar.gz), then source() this file.
#
# The packages of R and an environment of Python with TensorFlow are installed into the runtime,
# which takes minutes, and are gone with it. Models and checkpoints that shall stay are to be copied
# away: gpu_save() to a file, and download it.
# This script was not run on Colab: gpukeras' tests read it only.

if (!exists("package")) stop("Set `package` to the path of gpukeras' source package first.")
if (!file.exists(package)) stop("There is no file at `package`: upload it to the runtime.")

needed <- c("callr", "cli", "jsonlite", "reticulate", "rlang")
missing <- needed[!nzchar(vapply(needed, function(name) system.file(package = name), ""))]
if (length(missing) > 0) install.packages(missing)
install.packages(package, repos = NULL, type = "source")

# An environment of its own: Colab's Python has packages of other versions.
gpukeras::install_gpukeras()
print(gpukeras::gpu_check())
