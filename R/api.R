# Calls into Python. No other file uses `reticulate::`.

# Calls one entry point of the Python core and returns its value as R values. `call` is the exported
# function that the user called: errors name it.
call_core <- function(name, args = list(), call = caller_env()) {
  if (is_fork() && !name %in% c("check", "report")) abort_fork(call)
  core <- core(call)
  if (length(the$missing) > 0 && !name %in% c("check", "report", "prepare")) {
    abort_missing(the$missing, call)
  }
  args <- plain_arguments(args, call)
  envelope <- withCallingHandlers(
    core$invoke(name, args),
    # An error of reticulate names nothing. Nothing is converted where Python does not run.
    error = function(error) if (python_runs()) check_convertible(args, call)
  )
  raise_warnings()
  if (!isTRUE(envelope$ok)) {
    if (identical(envelope$code, "generator")) raise_kept()
    raise_crossed(envelope$condition)
    abort_core(envelope, call = call)
  }
  envelope$value
}

# Names the argument that Python has no type for, such as an environment or a symbol, which
# reticulate does not.
check_convertible <- function(args, call, arg = "...") {
  names <- rlang::names2(args)
  for (place in seq_along(args)) {
    value <- args[[place]]
    name <- if (nzchar(names[place])) names[place] else arg
    if (rlang::is_bare_list(value)) {
      check_convertible(value, call, name)
    } else {
      tryCatch(reticulate::r_to_py(value), error = function(error) {
        abort_spec(value, name, "a value that Python has a type for", call)
      })
    }
  }
}

# Whether this process is a fork of the one that loaded the core. A fork has none of Python's and
# TensorFlow's threads, so waiting for one would never end.
is_fork <- function() !is.null(the$pid) && the$pid != Sys.getpid()

abort_fork <- function(call) {
  abort_gpukeras(
    "This R process is a fork of the one in which Python runs: TensorFlow does not work in it.",
    code = "fork", call = call,
    hint = paste(
      "Use gpu_run() or the package mirai, whose R processes start anew, instead of",
      "parallel::mclapply(), mcparallel() or multicore."
    )
  )
}

# A buffer in R's memory that the core allocates and fills. `make` must return an unreferenced
# matrix; setting dimnames afterwards would copy it.
output_buffer <- function() {
  made <- NULL
  list(
    make = function(rows, columns, names = list()) {
      values <- numeric(as.double(rows) * columns) # faster than matrix(0, )
      dim(values) <- c(rows, columns)
      if (length(names) > 0) colnames(values) <- unlist(names)
      made <<- values
    },
    take = function() if (ncol(made) == 1) as.vector(made) else made
  )
}

# The Python core, imported on first use: library(gpukeras) starts no Python.
core <- function(call = caller_env()) {
  if (is.null(the$core)) {
    start_python(call)
    path <- system.file("python", package = "gpukeras", mustWork = TRUE)
    the$missing <- read_missing(path)
    if (is_numpy_missing(the$missing)) abort_missing(the$missing, call)
    the$core <- tryCatch(
      reticulate::import_from_path("gpukeras.api", path = path),
      error = function(condition) abort_import(said_by(condition), path, call)
    )
    the$pid <- Sys.getpid()
  }
  the$core
}

# Runs an action once when R ends, of which Python gets no notice. A fork has none of its threads,
# and a session whose Python never ran must not look for one.
at_session_end <- function(key, action) {
  if (is.null(the$ending[[key]])) {
    session <- Sys.getpid()
    the$ending[[key]] <- new.env(parent = emptyenv())
    reg.finalizer(the$ending[[key]], onexit = TRUE, function(state) {
      if (Sys.getpid() == session && python_runs()) try(action(), silent = TRUE)
    })
  }
}

# reticulate's own message says why no Python can be loaded, and leaves out a wrong version.
start_python <- function(call) {
  if (python_runs()) {
    return()
  }
  declare_python(replace = FALSE)
  tryCatch(suppressWarnings(reticulate::py_config()), error = function(condition) {
    abort_gpukeras(
      paste("There is no Python for R:", why_no_python(said_by(condition))),
      code = "runtime_missing", hint = advise_python(), call = call
    )
  })
}

# What reticulate says, without its advice to install a Python that is not gpukeras' own.
why_no_python <- function(said) {
  said <- sub(" Use reticulate::install_.*", "", gsub("\\s+", " ", said))
  sub("[:. ]*$", ".", said)
}

# The way out where no Python can be loaded: the one that was chosen may be too old or too new.
advise_python <- function(chosen = Sys.getenv("RETICULATE_PYTHON")) {
  if (chosen %in% c("", "managed")) {
    return("install_gpukeras() makes an environment for it.")
  }
  facts <- ask_python(chosen, character())
  range <- choose_requirements(read_computer())$python
  fits <- nzchar(facts$failed) || is_version_within(facts$version, range)
  wrong <- sprintf(
    "RETICULATE_PYTHON is Python %s; gpukeras takes %s with reticulate %s. ", facts$version,
    describe_range(range), read_reticulate()
  )
  paste0(
    if (!fits) wrong, "install_gpukeras() makes an environment, which is taken where ",
    "RETICULATE_PYTHON is not set."
  )
}

# What is needed is there, and an import fails: with an older C++ library in R, for example.
# gpu_check() returns `check`.
abort_import <- function(said, path, call) {
  core <- reticulate::import_from_path("gpukeras.diagnostics.no_core", path = path)
  said <- trimws(sub("Run .*py_last_error.*", "", said)) # by reticulate
  check <- core$check_core(said, python_path())
  abort_gpukeras(
    sprintf(
      "gpukeras cannot be imported. %s [%s] %s.", check$cause, check$cause_id,
      sub("[.]$", "", check$evidence[[1]])
    ),
    code = "runtime_missing", hint = check$fix, check = check, call = call
  )
}

# Whether the running Python is the operating system's, into which pip installs nothing (PEP 668).
is_managed <- function(path = system.file("python", package = "gpukeras", mustWork = TRUE)) {
  python_runs() && tryCatch(
    reticulate::import_from_path("gpukeras.system.pip", path = path)$is_managed(),
    error = function(condition) FALSE
  )
}

# Requirements that the running Python does not meet. The core is not imported yet: it needs NumPy.
read_missing <- function(path) {
  version <- as.character(reticulate::py_config()$version)
  oldest <- known_good()$oldest$python
  if (numeric_version(version) < oldest) {
    return(list(list(wanted = paste0("python>=", oldest), found = paste("python", version))))
  }
  installed <- reticulate::import_from_path("gpukeras.system.requirements", path = path)
  lacks <- function(backend) installed$read_lacking(as.list(choose_least(backend = backend)))
  choose_lacking(lacks("tensorflow"), lacks("jax"))
}

# Keras runs on TensorFlow or on JAX: one of them is enough.
choose_lacking <- function(with_tensorflow, with_jax) {
  jax <- any(vapply(with_jax, function(lack) startsWith(lack$wanted, "jax"), NA))
  if (jax) with_tensorflow else with_jax
}

# The folder in which reticulate looks for virtual environments.
environments_root <- function() path.expand(reticulate::virtualenv_root())

# Sets the environment that reticulate uses, or the requirements to make one from, as long as no
# Python runs and the user has chosen none. This starts no Python and downloads nothing.
declare_python <- function(replace = TRUE) {
  if (python_runs()) {
    return(invisible())
  }
  can_require <- read_reticulate() >= "1.41"
  choice <- choose_python(read_choices(environments_root(), can_require))
  switch(choice$how,
    environment = reticulate::use_python(choice$python, required = FALSE),
    require = require_packages(replace)
  )
  invisible(choice)
}

# reticulate has py_require() from 1.41 on, so it is not named by `::`.
require_packages <- function(replace, computer = read_computer()) {
  declare <- getExportedValue("reticulate", "py_require")
  planned <- plan_declared(declare()$packages, computer, replace)
  if (length(planned$message) > 0) {
    inform_gpukeras(planned$message, class = "packageStartupMessage")
  }
  if (length(planned$remove) > 0) {
    declare(planned$remove, action = "remove")
    if (isNamespaceLoaded("keras3")) { # keras3 has forbidden uv any other TensorFlow
      getExportedValue("keras3", "use_backend")("tensorflow", gpu = TRUE)
    }
  }
  declared <- declare()
  declare(
    setdiff(planned$add, declared$packages),
    python_version = setdiff(planned$python, declared$python_version)
  )
}

# Loading reticulate takes a second, so it is not loaded to find out.
python_runs <- function() {
  isNamespaceLoaded("reticulate") && reticulate::py_available(initialize = FALSE)
}

# reticulate calls this hook when Python has started; a package loaded later asks at once.
on_python_start <- function(action) {
  setHook("reticulate.onPyInit", function(...) action())
}

# Loads the CUDA libraries of TensorFlow's wheel before TensorFlow itself. gpu_check() reports a
# failure; a failure must not keep Python from starting.
prepare_python <- function() {
  try(call_core("prepare"), silent = TRUE)
  # Files that TensorFlow leaves in Python's temporary folder are then removed with R's.
  try(reticulate::py_set_attr(reticulate::import("tempfile"), "tempdir", tempdir()), silent = TRUE)
  start_accelerating()
}

# Which Python reticulate bound to, and why: facts for gpu_check().
read_python <- function() {
  start_python(call = NULL)
  config <- reticulate::py_config()
  list(
    python = config$python,
    version = as.character(config$version),
    forced = name_choice(config$forced),
    numpy = as.character(config$numpy$version %||% ""),
    reticulate = as.character(utils::packageVersion("reticulate"))
  )
}

# What chose Python. Of an environment that was only proposed, as gpukeras does, reticulate says
# "use_python(, required = FALSE)", which names nothing.
name_choice <- function(forced) {
  if (is.null(forced) || grepl("(,", forced, fixed = TRUE)) "" else forced
}

# Whether a handle to a Python object is invalid after saving or a restart of R.
is_dead <- function(handle) {
  !inherits(handle, "python.builtin.object") || reticulate::py_is_null_xptr(handle)
}

# Whether TensorFlow is loaded. It takes GPU memory, so gpukeras never loads it without need.
tensorflow_runs <- function() {
  if (!python_runs() || is_fork()) {
    return(FALSE)
  }
  isTRUE(reticulate::py_eval("'tensorflow' in __import__('sys').modules"))
}

# The path of this session's Python, for child processes; "" if none is chosen yet.
python_path <- function() {
  if (python_runs()) {
    return(reticulate::py_config()$python)
  }
  chosen <- Sys.getenv("RETICULATE_PYTHON")
  if (nzchar(chosen) || !isNamespaceLoaded("reticulate")) {
    return(chosen)
  }
  tryCatch(reticulate::py_discover_config()$python %||% "", error = function(condition) "")
}

# The same for all handles to one Python object.
python_key <- function(handle) as.character(reticulate::py_id(handle))

# Whether a Python object has one of these attributes.
has_python <- function(handle, names) {
  any(vapply(names, function(name) reticulate::py_has_attr(handle, name), NA))
}

# An R value as Python's, by the conversion of the package that it belongs to.
as_python <- function(x) reticulate::r_to_py(x)
