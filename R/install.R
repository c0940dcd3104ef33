# install_gpukeras(): a virtual environment with TensorFlow and Keras.

#' Install TensorFlow and Keras
#'
#' Makes a virtual environment for R with versions of TensorFlow, Keras and NumPy that are known to
#' work together, and with the build of TensorFlow that fits the computer: with CUDA's libraries if
#' there is an NVIDIA GPU, and without them otherwise, which saves gigabytes. You need not install
#' anything of CUDA before, except NVIDIA's driver. The operating system's own Python, into which
#' pip installs nothing (PEP 668: Debian, Ubuntu, Fedora, Homebrew), only makes the environment.
#'
#' An existing environment is kept: packages that fit stay, and only missing or outdated packages
#' are installed. Nothing is removed, unless `new = TRUE` requests a new environment. If that fails
#' or is interrupted, the old environment is restored.
#'
#' @section The build of TensorFlow:
#' On Linux with an x86-64 processor, `gpu = "auto"` takes `tensorflow[and-cuda]` if it detects an
#' NVIDIA GPU: by the files of the device or its driver (`/dev/nvidia0`,
#' `/proc/driver/nvidia/version`), on the PCI bus, or by WSL. It runs no program, because `lspci`
#' and `nvidia-smi` are missing in many containers. Without an NVIDIA GPU it takes `tensorflow-cpu`.
#' On macOS, on Windows, and on other processors it takes `tensorflow`, which computes on the CPU
#' there. To use a GPU on Windows, install R and gpukeras in WSL2, which is Linux on Windows.
#'
#' @section Which Python is used:
#' When gpukeras first needs Python, and R does not run one yet, it uses the first of these:
#'
#' 1. the one that you chose with `RETICULATE_PYTHON`, or with `reticulate::use_python()` and
#'    similar functions;
#' 2. the active virtual environment, or the active conda environment if it has TensorFlow;
#' 3. the virtual environment `r-gpukeras`, which `install_gpukeras()` makes, else `r-keras` or
#'    `r-tensorflow`, which the R packages keras3 and tensorflow make;
#' 4. with reticulate 1.41 or later, an environment that reticulate makes for the session and keeps
#'    in its cache: gpukeras declares its requirements with `reticulate::py_require()`. Then
#'    `install_gpukeras()` is not needed;
#' 5. any other Python that reticulate finds.
#'
#' `library(gpukeras)` starts no Python and downloads nothing. If a Python lacks something, or has a
#' version that cannot work, an error names the Python, what it lacks, and what to do.
#'
#' @section Offline:
#' On a computer without access to PyPI, pass a folder with the packages' files (wheels) as
#' `wheels`. `install_gpukeras(dry_run = TRUE)` prints the command that downloads them. Run it on a
#' computer with access that has the same system, kind of processor and version of Python, and copy
#' the folder. Behind a mirror or a proxy, set the variables of pip: `PIP_INDEX_URL`, `HTTPS_PROXY`.
#'
#' @section HPC clusters:
#' * Load the Python module before R, so that gpukeras finds it: `module load python/3.11`.
#' * Home folders are small and CUDA's libraries are not. Give a path, such as
#'   `install_gpukeras("/project/me/gpukeras", gpu = TRUE)`, and move pip's cache with
#'   `PIP_CACHE_DIR`. One environment can serve a whole group.
#' * Login nodes often have no GPU: `gpu = TRUE` installs for the nodes that have one.
#' * Name the environment in `~/.Renviron`, so that all jobs use it, and none makes its own:
#'   `RETICULATE_PYTHON=/project/me/gpukeras/bin/python`.
#' * Modules that set `PYTHONPATH` put their packages before those of the environment: unload them.
#'
#' @param envname The name of a virtual environment, or a path with a slash.
#' @param gpu `"auto"` looks for an NVIDIA GPU. `TRUE` installs CUDA's libraries without looking,
#'   `FALSE` leaves them out.
#' @param python The interpreter to make the environment with; `NULL` takes the first suitable one
#'   on the path. If it is a shim of pyenv, the real interpreter is used.
#' @param new Whether to replace an existing environment by a new one. The old one is kept until the
#'   new one is complete.
#' @param wheels A folder of packages to install from, without a network.
#' @param packages Requirements in pip's syntax, such as `"keras==3.12.0"`, instead of those in the
#'   table of versions that are known to work.
#' @param pip_options More options of `pip install`.
#' @param dry_run Whether to return only the plan and change nothing.
#' @param verbose Whether to show progress: bars at a terminal, and pip's output elsewhere.
#' @param backend What Keras runs on: `"tensorflow"`, or `"jax"`, which has CUDA for newer cards and
#'   for arm64 too; then no TensorFlow is installed. See the section on JAX in [gpu_setup()].
#' @param cards Whether to install what [gpu_cost()] compiles with for cards that are not here, in
#'   place of all else: JAX's compiler for NVIDIA GPUs, on Linux, 306 MB to download and 1.3 GB on
#'   disk. It gets an environment of its own, `r-gpukeras-cards`, in which no session runs.
#' @return A `gpu_install`, the plan: a list with `$path`, `$python`, `$packages` (all that is
#'   needed), `$lacking` (what is or was to be installed), `$reason` (for the build of TensorFlow),
#'   `$problem` (why the plan cannot be carried out, or `""`) and `$download` (a command for another
#'   computer). Invisible, unless `dry_run`.
#' @section Errors:
#' `gpukeras_error_runtime_missing` if no suitable Python exists, if the environment cannot be
#' completed without removing something, or if pip fails; `gpukeras_error_spec` for invalid
#' arguments.
#' @seealso [gpu_check()], which tests whether the GPU is used.
#' @export
#' @examples
#' # What would be installed, and why: nothing is changed.
#' install_gpukeras(dry_run = TRUE)
#' install_gpukeras(gpu = TRUE, dry_run = TRUE)$packages
install_gpukeras <- function(envname = "r-gpukeras", gpu = "auto", python = NULL, new = FALSE,
                             wheels = NULL, packages = NULL, pip_options = character(),
                             dry_run = FALSE, verbose = TRUE, backend = "tensorflow",
                             cards = FALSE) {
  if (!(rlang::is_string(backend) && backend %in% c("tensorflow", "jax"))) {
    abort_spec(backend, "backend", "\"tensorflow\" or \"jax\"", rlang::current_env())
  }
  check_flags(new = new, dry_run = dry_run, verbose = verbose, cards = cards)
  check_string(envname)
  check_texts(python = python, wheels = wheels)
  check_vectors(packages = packages, pip_options = pip_options)
  check_requirements(packages)
  check_folder(wheels)
  computer <- read_computer()
  check_gpu(gpu, computer, backend)
  if (cards) check_compiler(computer)
  if (cards && missing(envname)) envname <- cards_environment
  required <- if (cards) {
    choose_compiler()
  } else {
    choose_requirements(computer, gpu, backend = backend)
  }
  plan <- plan_install(required, envname, python, new, wheels, packages)
  if (dry_run) {
    return(plan)
  }
  execute_plan(plan, pip_options, verbose)
  invisible(plan)
}

check_flags <- function(..., call = caller_env()) {
  flags <- list(...)
  for (arg in names(flags)) check_flag(flags[[arg]], arg, call)
}

check_texts <- function(..., call = caller_env()) {
  texts <- Filter(Negate(is.null), list(...)) # NULL is the default
  for (arg in names(texts)) check_string(texts[[arg]], arg, call)
}

check_vectors <- function(..., call = caller_env()) {
  vectors <- list(...)
  for (arg in names(vectors)) {
    value <- vectors[[arg]]
    if (!is.null(value) && (!is.character(value) || anyNA(value))) {
      abort_spec(value, arg, "a character vector", call)
    }
  }
}

# Refuses options of pip, which would take effect, and files and addresses, which have no version.
check_requirements <- function(packages, call = caller_env()) {
  form <- "^[A-Za-z0-9][A-Za-z0-9_.-]*(\\[[A-Za-z0-9_,.-]+\\])?([<>=!~]+[A-Za-z0-9.*+,<>=!~-]+)?$"
  apart <- grepl("[A-Za-z0-9] +[A-Za-z0-9]", packages)
  bad <- packages[apart | !grepl(form, gsub(" ", "", packages))]
  if (!is.null(packages) && (length(packages) == 0 || length(bad) > 0)) {
    shown <- if (length(bad) > 0) bad[1] else packages
    abort_spec(shown, "packages", "requirements such as \"keras>=3.12,<4\"", call)
  }
}

check_folder <- function(wheels, call = caller_env()) {
  if (!is.null(wheels) && !dir.exists(wheels)) {
    abort_spec(wheels, "wheels", "a folder that is there", call)
  }
}

check_gpu <- function(gpu, computer, backend = "tensorflow", call = caller_env()) {
  if (!identical(gpu, "auto") && !rlang::is_bool(gpu)) {
    abort_spec(gpu, "gpu", "\"auto\", TRUE or FALSE", call)
  }
  build <- if (backend == "jax") choose_jax(computer, gpu) else choose_build(computer, gpu)
  if (isTRUE(gpu) && build[[backend]] == backend) {
    abort_gpukeras(
      "`gpu = TRUE` cannot be had on this computer.", code = "spec", arg = "gpu", call = call,
      hint = paste0(if (backend == "jax") "JAX" else "TensorFlow", " comes ", build$reason, ".")
    )
  }
}

check_compiler <- function(computer, call = caller_env()) {
  if (computer$system != "Linux") {
    abort_gpukeras(
      "`cards = TRUE` cannot be had on this computer.", code = "spec", arg = "cards", call = call,
      hint = "JAX's compiler for NVIDIA GPUs is for Linux, of WSL2 too."
    )
  }
}

# Executing the plan ------------------------------------------------------------------------------

execute_plan <- function(plan, pip_options, verbose, call = caller_env()) {
  check_feasible(plan, call)
  if (length(plan$lacking) == 0) {
    inform_gpukeras(v = sprintf("%s has all it needs.", plan$path))
    return()
  }
  inform_gpukeras(paste(format(plan), collapse = "\n"))
  if (plan$exists && !plan$new) {
    install_packages(plan, plan$python, pip_options, verbose, call)
  } else {
    replace_environment(plan$path, make_environment(plan, pip_options, verbose, call))
  }
  inform_gpukeras(describe_installed(plan))
}

check_feasible <- function(plan, call) {
  problem <- if (nzchar(plan$problem)) {
    plan$problem
  } else if (file.exists(before_path(plan$path))) {
    sprintf(
      "%s is left of an installation that was ended: remove it, or rename it to %s",
      before_path(plan$path), plan$path
    )
  } else if (plan$exists && length(plan$lacking) > 0 && is_running(plan$path)) {
    "this R session uses the environment: restart R, and call install_gpukeras() first"
  } else {
    return()
  }
  abort_gpukeras(
    sprintf("%s cannot be installed: %s.", plan$path, problem), code = "runtime_missing",
    hint = if (nzchar(plan$python)) "" else no_python_hint(), path = plan$path, call = call
  )
}

no_python_hint <- function() {
  switch(Sys.info()[["sysname"]],
    Linux = paste(
      "On Debian and Ubuntu: apt install python3-venv libpython3-dev; on a cluster: load a module",
      "of Python. Or name one by `python`."
    ),
    "Install one from https://www.python.org, or name one by `python`."
  )
}

# Whether this session's Python belongs to the environment.
is_running <- function(path) {
  python_runs() && startsWith(dirname(python_path()), paste0(path, "/"))
}

before_path <- function(path) paste0(path, ".before")

# Makes a new environment at the path of the old one, since an environment contains its own path.
# The old one is renamed meanwhile, and restored if the new one is not completed.
replace_environment <- function(path, make) {
  before <- before_path(path)
  had <- dir.exists(path)
  if (had) file.rename(path, before)
  done <- FALSE
  on.exit({
    unlink(if (done) before else path, recursive = TRUE, force = TRUE)
    if (had && !done) file.rename(before, path)
  })
  force(make)
  done <- TRUE
}

make_environment <- function(plan, pip_options, verbose, call) {
  dir.create(dirname(plan$path), recursive = TRUE, showWarnings = FALSE)
  said <- run_step(
    plan$python, c("-I", "-m", "venv", plan$path), verbose, call, "making the environment"
  )
  if (said$status != 0) {
    abort_install(sprintf("Python makes no environment in %s", plan$path), said$lines, call)
  }
  install_packages(plan, environment_python(plan$path), pip_options, verbose, call)
}

# pip resolves all packages before it installs any.
install_packages <- function(plan, python, pip_options, verbose, call) {
  lacking <- vapply(plan$lacking, `[[`, "", "install")
  source <- if (!is.null(plan$wheels)) c("--no-index", "--find-links", plan$wheels)
  said <- run_step(python, c(
    "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-user",
    source, pip_options, lacking
  ), verbose, call)
  if (said$status != 0) {
    abort_install("pip does not install the packages", said$lines, call)
  }
  left <- ask_python(python, plan$packages)$lacking
  if (length(left) > 0) {
    abort_install("pip ended well, and still", describe_missing(left), call)
  }
}

abort_install <- function(what, lines, call) {
  lines <- utils::tail(lines[nzchar(trimws(lines))], 5)
  abort_gpukeras(
    paste0(what, ": ", if (length(lines) > 0) paste(lines, collapse = " ") else "see above", "."),
    code = "runtime_missing", call = call,
    hint = "Without access to PyPI, see \"Offline\" in ?install_gpukeras."
  )
}

describe_installed <- function(plan) {
  cards <- identical(plan$reason, choose_compiler()$reason)
  own <- if (cards) cards_environment else "r-gpukeras"
  found <- identical(plan$path, file.path(environments_root(), own))
  c(
    v = sprintf("%s is complete.", plan$path),
    i = if (!found) {
      sprintf(
        "For R to take it, put %s=%s into ~/.Renviron.",
        if (cards) "GPUKERAS_CARDS_PYTHON" else "RETICULATE_PYTHON",
        environment_python(plan$path)
      )
    },
    i = if (cards) {
      "gpu_cost(model, data, card = ) compiles with it."
    } else if (python_runs()) {
      "This session runs another Python: restart R."
    } else {
      "Is the GPU used? gpu_check() tells."
    }
  )
}
