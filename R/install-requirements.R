# The Python and packages that gpukeras needs. Pure R functions decide this from facts, because no
# Python runs yet. The versions are in known_good.json.

# Versions that are known to work together. `lines`: a release line of TensorFlow with the versions
# of the others, the best first, by system, processor and least version of reticulate ("" is any).
known_good <- function() {
  path <- system.file(
    "python/gpukeras/system/known_good.json", package = "gpukeras", mustWork = TRUE
  )
  jsonlite::fromJSON(path)
}

# The line of the table for a computer and its reticulate.
choose_line <- function(computer, reticulate, lines = known_good()$lines) {
  fits <- lines$system %in% c("", computer$system) & lines$machine %in% c("", computer$machine) &
    numeric_version(lines$reticulate) <= reticulate
  found <- lines[fits, ]
  own <- nzchar(found$system) # a line for this system takes precedence
  as.list(found[order(!own), ][1, ])
}

# The computer ------------------------------------------------------------------------------------

# Facts that decide the build of TensorFlow. `root` is the root of the file system.
read_computer <- function(root = "/") {
  info <- Sys.info()
  list(
    system = info[["sysname"]], machine = info[["machine"]],
    nvidia = if (info[["sysname"]] == "Linux") find_nvidia(root) else ""
  )
}

# The first sign of an NVIDIA GPU, or "". Only files are read, because lspci and nvidia-smi are
# missing in many containers.
find_nvidia <- function(root = "/") {
  files <- c("dev/nvidia0", "proc/driver/nvidia/version")
  found <- file.exists(file.path(root, files))
  if (any(found)) {
    return(paste0("/", files[found][1]))
  }
  device <- find_nvidia_pci(root)
  if (nzchar(device)) {
    return(sprintf("PCI device %s", device))
  }
  libraries <- Sys.glob(file.path(root, "usr/lib/wsl/lib/libcuda.so*"))
  wsl <- file.exists(file.path(root, "dev/dxg")) && length(libraries) > 0
  if (wsl) "/dev/dxg and the driver of Windows" else ""
}

# An NVIDIA device of the display classes; a card's sound is another device.
find_nvidia_pci <- function(root) {
  read <- function(path) tryCatch(readLines(path, 1, warn = FALSE), error = function(e) "")
  for (folder in Sys.glob(file.path(root, "sys/bus/pci/devices/*"))) {
    vendor <- suppressWarnings(read(file.path(folder, "vendor")))
    class <- suppressWarnings(read(file.path(folder, "class")))
    if (identical(vendor, "0x10de") && startsWith(c(class, "")[1], "0x03")) {
      return(basename(folder))
    }
  }
  ""
}

# The requirements --------------------------------------------------------------------------------

# What to install on a computer, and why. `gpu` is "auto", TRUE or FALSE.
choose_requirements <- function(computer, gpu = "auto", reticulate = read_reticulate(),
                                backend = "tensorflow") {
  line <- choose_line(computer, reticulate)
  build <- if (backend == "jax") choose_jax(computer, gpu) else choose_build(computer, gpu)
  list(
    packages = c(
      requirement(build[[backend]], line[[backend]], line[[paste0(backend, "_below")]]),
      requirement("keras", line$keras, line$keras_below),
      requirement("numpy", line$numpy, line$numpy_below),
      companion_requirements()
    ),
    python = c(line$python, line$python_below),
    reason = build$reason
  )
}

# The build of TensorFlow for a computer, with the reason.
choose_build <- function(computer, gpu) {
  linux <- computer$system == "Linux"
  intel <- computer$machine %in% c("x86_64", "amd64", "AMD64")
  if (!linux || !intel) {
    list(tensorflow = "tensorflow", reason = explain_no_cuda(computer))
  } else if (isFALSE(gpu)) {
    list(tensorflow = "tensorflow-cpu", reason = "without a GPU, as `gpu = FALSE` asks for")
  } else if (isTRUE(gpu)) {
    list(tensorflow = "tensorflow[and-cuda]", reason = "with CUDA, as `gpu = TRUE` asks for")
  } else if (nzchar(computer$nvidia)) {
    list(
      tensorflow = "tensorflow[and-cuda]",
      reason = sprintf("with CUDA: there is an NVIDIA GPU (%s)", computer$nvidia)
    )
  } else {
    list(
      tensorflow = "tensorflow-cpu",
      reason = paste(
        "without a GPU: no NVIDIA GPU is seen, neither by device files nor by PCI nor by WSL"
      )
    )
  }
}

# The build of JAX for a computer, with the reason. It has wheels with CUDA for Linux on arm64 too.
choose_jax <- function(computer, gpu) {
  sees <- nzchar(computer$nvidia)
  if (computer$system != "Linux") {
    list(jax = "jax", reason = "without a GPU: JAX has CUDA on Linux only")
  } else if (isTRUE(gpu) || (identical(gpu, "auto") && sees)) {
    why <- if (isTRUE(gpu)) "as `gpu = TRUE` asks for" else paste("for", computer$nvidia)
    list(jax = "jax[cuda12]", reason = paste("JAX with CUDA,", why))
  } else {
    list(jax = "jax", reason = "JAX without a GPU: none is seen, or `gpu` is FALSE")
  }
}

# What compiles programs for NVIDIA GPUs that are not here, in an environment of its own.
cards_environment <- "r-gpukeras-cards"

choose_compiler <- function() {
  lines <- readLines(system.file(
    "python/gpukeras/profiler/aot/requirements.txt", package = "gpukeras", mustWork = TRUE
  ))
  list(
    packages = grep("^[a-z]", lines, value = TRUE), python = c("3.11", "3.14"),
    reason = "JAX that compiles for NVIDIA GPUs that are not here, for gpu_cost(card = )"
  )
}

# The Python that has them, or "".
cards_python <- function(root = environments_root()) {
  given <- Sys.getenv("GPUKERAS_CARDS_PYTHON")
  python <- if (nzchar(given)) given else environment_python(file.path(root, cards_environment))
  if (file.exists(python)) python else ""
}

# Why there is no TensorFlow with CUDA for a computer.
explain_no_cuda <- function(computer) {
  switch(computer$system,
    Windows = paste(
      "without a GPU: TensorFlow uses none on Windows itself. With one it runs in WSL2, which is",
      "Linux on Windows: install R and gpukeras there"
    ),
    Darwin = "without a GPU: TensorFlow has no CUDA on macOS",
    sprintf(
      "without a GPU: PyPI has no TensorFlow with CUDA for %s; NVIDIA has containers with one",
      computer$machine
    )
  )
}

# A requirement of versions from one on and below another.
requirement <- function(package, from, below) paste0(package, ">=", from, ",<", below)

companion_requirements <- function(known = known_good()$companions) {
  requirement(known$package, known$from, known$below)
}

# The least requirements of a session: older versions are known not to work, newer ones may.
choose_least <- function(reticulate = read_reticulate(), backend = "tensorflow") {
  known <- known_good()
  line <- choose_line(list(system = "", machine = ""), reticulate, known$lines)
  packages <- c(backend, "keras", "numpy")
  own <- line$numpy_below != known$lines$numpy_below[1] # an old reticulate's
  limits <- c("", "", if (own) paste0(",<", line$numpy_below) else "")
  paste0(packages, ">=", unlist(known$oldest[packages]), limits)
}

read_reticulate <- function() utils::packageVersion("reticulate")

# The Python --------------------------------------------------------------------------------------

# Which Python reticulate must use. `how`: "given" (chosen already), "environment" (this `python`),
# "require" (an environment that reticulate makes for requirements), or "reticulate" (its choice).
choose_python <- function(facts) {
  variables <- c("RETICULATE_PYTHON", "RETICULATE_PYTHON_ENV", "RETICULATE_PYTHON_FALLBACK")
  given <- facts$variables[variables]
  managed <- identical(given[["RETICULATE_PYTHON"]], "managed") || facts$managed
  if (managed && facts$can_require) {
    return(list(how = "require"))
  }
  if (any(nzchar(given))) {
    return(list(how = "given", by = variables[nzchar(given)][1]))
  }
  if (length(facts$environments) > 0) {
    return(list(
      how = "environment", python = facts$environments[[1]], by = names(facts$environments)[1]
    ))
  }
  list(how = if (facts$can_require) "require" else "reticulate")
}

# The facts for that. `root` is the folder of virtual environments.
read_choices <- function(root, can_require) {
  names <- c(
    "RETICULATE_PYTHON", "RETICULATE_PYTHON_ENV", "RETICULATE_PYTHON_FALLBACK", "VIRTUAL_ENV",
    "CONDA_PREFIX", "RETICULATE_USE_MANAGED_VENV"
  )
  variables <- Sys.getenv(names, names = TRUE)
  list(
    variables = as.list(variables),
    managed = tolower(variables[["RETICULATE_USE_MANAGED_VENV"]]) %in% c("true", "1", "yes"),
    environments = find_environments(variables, root),
    can_require = can_require
  )
}

# The Pythons of active environments and of those that keras packages make, by precedence. An active
# conda environment counts only with TensorFlow in it: often it is just the one that holds R.
find_environments <- function(variables, root) {
  conda <- variables[["CONDA_PREFIX"]]
  has_keras <- nzchar(conda) && length(Sys.glob(file.path(
    conda, c("lib/python3*/site-packages/tensorflow", "Lib/site-packages/tensorflow")
  ))) > 0
  own <- c("r-gpukeras", "r-keras", "r-tensorflow")
  folders <- c(
    VIRTUAL_ENV = variables[["VIRTUAL_ENV"]], CONDA_PREFIX = if (has_keras) conda else "",
    stats::setNames(file.path(root, own), own)
  )
  pythons <- vapply(folders, environment_python, "")
  as.list(pythons[nzchar(folders) & file.exists(pythons)])
}

# The path of an environment's interpreter, which need not exist.
environment_python <- function(folder) {
  places <- c("bin/python", "Scripts/python.exe", "python.exe")
  paths <- file.path(path.expand(folder), places)
  c(paths[file.exists(paths)], paths[.Platform$OS.type == "windows" | seq_along(places) == 1])[1]
}

# Requirements for reticulate ---------------------------------------------------------------------

# Changes to the requirements that R packages have declared; all builds of TensorFlow install the
# same files. keras3 detects a GPU by lspci and nvidia-smi, and declares `tensorflow-cpu` if both
# are missing. `replace` corrects that; a later declaration is deliberate and stays.
plan_declared <- function(declared, computer, replace, reticulate = read_reticulate()) {
  line <- choose_line(computer, reticulate)
  build <- choose_build(computer, "auto")$tensorflow
  theirs <- grep("^tensorflow(-cpu|-gpu)?($|[^a-z-])", declared, value = TRUE)
  plain <- startsWith(theirs, "tensorflow-cpu")
  beside <- any(grepl("^(jax|torch)($|[^a-z-])", declared)) # the GPU is theirs
  blind <- replace && any(plain) && build == "tensorflow[and-cuda]" && !beside
  removed <- if (blind || !all(plain)) theirs[plain] else character()
  kept <- setdiff(theirs, removed)
  list(
    remove = removed,
    add = loose_requirements(line, c(sub("[^][a-z-].*", "", kept), build)[1]),
    python = c(paste0(">=", line$python), paste0("<", line$python_below)),
    message = if (blind) describe_replaced(build, removed, computer$nvidia)
  )
}

# Wide requirements that agree with those of other packages. TensorFlow's bounds are separate, so
# that keras3 recognises them and can remove them.
loose_requirements <- function(line, tensorflow, known = known_good()) {
  c(
    paste0(tensorflow, c(">=", "<"), c(known$oldest$tensorflow, line$tensorflow_below)),
    requirement("keras", known$oldest$keras, line$keras_below),
    requirement("numpy", known$oldest$numpy, line$numpy_below),
    companion_requirements(known$companions)
  )
}

describe_replaced <- function(build, removed, sign) {
  c(
    sprintf(
      "Python gets %s in place of %s: there is an NVIDIA GPU (%s).", build, toString(removed), sign
    ),
    i = paste(
      "To stay on the CPU, call keras3::use_backend(\"tensorflow\", gpu = FALSE) after",
      "library(gpukeras)."
    )
  )
}

# What is missing ---------------------------------------------------------------------------------

# A phrase for each requirement that is not met.
describe_missing <- function(lacks) {
  one <- function(lack) {
    if (!nzchar(lack$found)) {
      return(sprintf("%s is missing", lack$wanted))
    }
    sprintf("%s is there and %s is needed", lack$found, lack$wanted)
  }
  vapply(lacks, one, "")
}

# Whether NumPy or Python is unfit. The core cannot be imported without NumPy, and reticulate
# converts no value with a NumPy that it does not support, so not even gpu_check() works.
is_numpy_missing <- function(lacks) {
  any(vapply(lacks, function(lack) {
    grepl("^(numpy|python)", lack$wanted) && !grepl("^numpy [2-9]", lack$found)
  }, NA))
}

abort_missing <- function(lacks, call, python = python_path()) {
  required <- vapply(lacks, `[[`, "", "wanted")
  abort_gpukeras(
    sprintf("%s cannot run gpukeras: %s.", python, paste(describe_missing(lacks), collapse = "; ")),
    code = "runtime_missing", hint = missing_hint(required, python), python = python,
    lacking = required,
    call = call
  )
}

# How to complete a Python. `given` is RETICULATE_PYTHON, which would choose the same one again.
missing_hint <- function(required, python, given = Sys.getenv("RETICULATE_PYTHON"),
                     computer = read_computer(), reticulate = read_reticulate(),
                     managed = is_managed()) {
  if (basename(dirname(dirname(python))) == "r-gpukeras") {
    return("Restart R, and call install_gpukeras().")
  }
  names <- sub("[^a-z].*", "", required)
  good <- choose_requirements(computer, reticulate = reticulate)$packages
  good <- good[sub("[^a-z].*", "", good) %in% names]
  paste0(
    "Restart R and call install_gpukeras(), which makes an environment of its own",
    if (nzchar(given)) ", without RETICULATE_PYTHON",
    if ("python" %in% names) {
      "."
    } else if (managed) {
      sprintf("; pip installs nothing into %s, which is the operating system's.", python)
    } else {
      sprintf("; or install it there: %s -m pip install %s", python, paste0(
        "\"", good, "\"", collapse = " "
      ))
    }
  )
}
