#' @keywords internal
#' @importFrom rlang .data caller_arg caller_env %||%
"_PACKAGE"

# The session's only mutable state, declared field by field.
the <- new.env(parent = emptyenv())
the$core <- NULL # the Python module gpukeras.api, loaded on first use
the$lacks <- list() # requirements that the Python of this session does not meet
the$pid <- NULL # the process that loaded the core: another one is a fork of it
the$condition <- NULL # what stopped a user's function that Python had called
the$warnings <- list() # the warnings of such a function
the$python_before <- NULL # whether Python ran before gpukeras was loaded
the$prepared <- list() # prepped recipes of the package recipes, by their marks
the$formulas <- list() # functions of formulas that the user has written, by their marked texts
the$events <- 0 # conditions that a child of gpu_run() has signalled

# Python is chosen when reticulate is there, and again after packages that choose for themselves.
.onLoad <- function(libname, pkgname) {
  the$python_before <- python_runs()
  on_python_start(prepare_python)
  register_tidymodels()
  if (isNamespaceLoaded("reticulate")) {
    try(declare_python(), silent = TRUE)
  }
  for (package in c("reticulate", "tensorflow", "keras3")) {
    setHook(packageEvent(package, "onLoad"), function(...) declare_python())
  }
}
