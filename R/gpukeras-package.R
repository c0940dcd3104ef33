#' @keywords internal
#' @importFrom rlang .data caller_arg caller_env %||%
"_PACKAGE"

# The session's only mutable state, declared field by field.
the <- new.env(parent = emptyenv())
the$core <- NULL # the Python module gpukeras.api, loaded on first use
the$missing <- list() # requirements that this session's Python does not meet
the$pid <- NULL # the process that loaded the core: another one is a fork of it
the$condition <- NULL # the error or interrupt of a user's function that Python called
the$warnings <- list() # the warnings of such a function
the$python_before <- NULL # whether Python ran before gpukeras was loaded
the$accelerate <- FALSE # whether accelerate() waits for Python to start
the$unmarshalled <- list() # models and datasets of marshalled values, the last used at the end
the$prepared <- list() # prepped recipes of the package recipes, by their keys
the$formulas <- list() # functions of formulas written in this session, by formula and key
the$stores <- NULL # closes object stores when R ends, once one was used
the$boards <- list() # servers of TensorBoard that this session has started
the$events <- 0 # conditions signalled so far by a child of gpu_run()
