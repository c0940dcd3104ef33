#' @keywords internal
#' @importFrom rlang .data caller_arg caller_env %||%
"_PACKAGE"

# The session's only mutable state, declared field by field.
the <- new.env(parent = emptyenv())
the$core <- NULL # the Python module gpukeras.border, loaded on first use
the$pid <- NULL # the process that loaded the core: another one is a fork of it
the$condition <- NULL # what stopped a user's function that Python had called
the$warnings <- list() # the warnings of such a function
the$python_before <- NULL # whether Python ran before gpukeras was loaded
the$events <- 0 # conditions that a child of gpu_run() has signalled

.onLoad <- function(libname, pkgname) {
  the$python_before <- python_runs()
  on_python_start(prepare_python)
}
