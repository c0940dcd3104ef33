# The only file that says `reticulate::`.

# Calls one entry point of the Python core and gives its value back as R values.
# `call` is the exported function that the user called: errors name it.
call_core <- function(name, args = list(), call = caller_env()) {
  if (is_fork() && !name %in% c("check", "report")) abort_fork(call)
  core <- core(call)
  if (length(the$lacks) > 0 && !name %in% c("check", "report", "prepare")) {
    abort_lacking(the$lacks, call)
  }
  envelope <- core$invoke(name, args)
  raise_warnings()
  if (!isTRUE(envelope$ok)) {
    if (identical(envelope$code, "generator")) raise_kept()
    raise_crossed(envelope$condition)
    abort_core(envelope, call = call)
  }
  envelope$value
}

# Whether this process is a fork of the one that loaded the core. Python's and TensorFlow's threads
# are not in it, and what waits for them never ends.
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

# Room in R's memory for a large result, which the core makes and fills itself. Nobody else may know
# the matrix before it is taken.
new_room <- function() {
  made <- NULL
  list(
    make = function(rows, columns, names = list()) {
      values <- numeric(as.double(rows) * columns) # matrix(0, ) would fill it number by number
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
    the$lacks <- read_lacks(path)
    if (lacks_numpy(the$lacks)) abort_lacking(the$lacks, call)
    the$core <- reticulate::import_from_path("gpukeras.api", path = path)
    the$pid <- Sys.getpid()
  }
  the$core
}

# Where there is none, or none that R can load, reticulate says so in words of its own.
start_python <- function(call) {
  if (python_runs()) {
    return()
  }
  declare_python(replace = FALSE)
  tryCatch(reticulate::py_config(), error = function(condition) {
    abort_gpukeras(
      paste("There is no Python for R:", sub("[.]?\\s*$", ".", said_by(condition))),
      code = "runtime_missing", hint = "install_gpukeras() makes an environment for it.",
      call = call
    )
  })
}

# What the Python that runs lacks of what gpukeras cannot do without; asked before the core is
# imported, which needs NumPy.
read_lacks <- function(path) {
  version <- as.character(reticulate::py_config()$version)
  oldest <- known_good()$oldest$python
  if (numeric_version(version) < oldest) {
    return(list(list(wanted = paste0("python>=", oldest), found = paste("python", version))))
  }
  installed <- reticulate::import_from_path("gpukeras.system.requirements", path = path)
  installed$read_lacking(as.list(choose_least()))
}

# The folder in which reticulate looks for virtual environments.
environments_root <- function() path.expand(reticulate::virtualenv_root())

# Has reticulate take an environment that is there, or make one of the right requirements: as long
# as no Python runs, and nobody has chosen one. Nothing starts here, nothing is downloaded.
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
    if (isNamespaceLoaded("keras3")) { # which has told uv never to take another TensorFlow
      getExportedValue("keras3", "use_backend")("tensorflow", gpu = TRUE)
    }
  }
  declared <- declare()
  declare(
    setdiff(planned$add, declared$packages),
    python_version = setdiff(planned$python, declared$python_version)
  )
}

# reticulate itself takes a second to load, so only one that is there is asked.
python_runs <- function() {
  isNamespaceLoaded("reticulate") && reticulate::py_available(initialize = FALSE)
}

# reticulate calls this hook when Python has started; a package loaded later asks at once.
on_python_start <- function(action) {
  setHook("reticulate.onPyInit", function(...) action())
}

# When somebody imports TensorFlow, the CUDA libraries that came with it are loaded first. What
# fails here is reported by gpu_check(): it must not keep Python from starting.
prepare_python <- function() {
  try(call_core("prepare"), silent = TRUE)
  # What TensorFlow leaves in Python's temporary folder goes when the session ends.
  try(reticulate::py_set_attr(reticulate::import("tempfile"), "tempdir", tempdir()), silent = TRUE)
}

# Which Python reticulate bound to, and why: facts for gpu_check().
read_python <- function() {
  start_python(call = NULL)
  config <- reticulate::py_config()
  list(
    python = config$python,
    version = as.character(config$version),
    forced = config$forced %||% "",
    numpy = as.character(config$numpy$version %||% ""),
    reticulate = as.character(utils::packageVersion("reticulate"))
  )
}

# A handle to a Python object that did not survive saving or a restart of R.
is_dead <- function(handle) {
  !inherits(handle, "python.builtin.object") || reticulate::py_is_null_xptr(handle)
}

# Whether TensorFlow is there already: it takes the card's memory, so nothing starts it unasked.
tensorflow_runs <- function() {
  if (!python_runs() || is_fork()) {
    return(FALSE)
  }
  isTRUE(reticulate::py_eval("'tensorflow' in __import__('sys').modules"))
}

# The Python of this session, for another process to use; "" where none is chosen yet.
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
