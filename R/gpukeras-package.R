#' @section First steps:
#' 1. [install_gpukeras()], once: Python's side, with TensorFlow and Keras. It may be left out with
#'    reticulate 1.41 or later, which makes an environment at the first call that needs Python.
#' 2. [gpu_setup()] at the start of a session, before the first model: device, memory, seed.
#' 3. [gpu_check()]: is the GPU used? If not: the cause and a fix.
#' 4. [gpu_dataset()] for the rows; [gpu_mlp()], [gpu_tabular()] or a compiled model of keras3;
#'    [gpu_fit()], [gpu_evaluate()], [gpu_predict()], [gpu_save()].
#'
#' @section Where the rest is:
#' `vignette("gpukeras")` is a first tour of all functions, by topic; `help(package = "gpukeras")`
#' lists them, `browseVignettes("gpukeras")` the other vignettes. On one page: the cheat sheet,
#' `system.file("cheatsheet/cheatsheet.pdf", package = "gpukeras")`. Errors have classes that begin
#' with `gpukeras_error`; [gpu_report()] returns a text for a bug report.
#'
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train, units = 16)
#' fit <- gpu_fit(model, train, epochs = 5)
#' gpu_predict(model, mtcars[1:3, ])
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
the$ending <- list() # what at_session_end() runs, by key
the$boards <- list() # servers of TensorBoard that this session has started
the$events <- 0 # conditions signalled so far by a child of gpu_run()
