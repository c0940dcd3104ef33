# The only file that says `reticulate::`.

# Calls one entry point of the Python core and gives its value back as R values.
# `call` is the exported function that the user called: errors name it.
call_core <- function(name, args = list(), call = caller_env()) {
  envelope <- core()$invoke(name, args)
  raise_warnings()
  if (!isTRUE(envelope$ok)) {
    if (identical(envelope$code, "generator")) raise_kept()
    abort_core(envelope, call = call)
  }
  envelope$value
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
core <- function() {
  if (is.null(the$core)) {
    path <- system.file("python", package = "gpukeras", mustWork = TRUE)
    the$core <- reticulate::import_from_path("gpukeras.border", path = path)
    the$pid <- Sys.getpid()
  }
  the$core
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
}

# Which Python reticulate bound to, and why: facts for gpu_check().
read_python <- function() {
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
  python_runs() && isTRUE(reticulate::py_eval("'tensorflow' in __import__('sys').modules"))
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
