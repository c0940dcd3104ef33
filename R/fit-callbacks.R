# R functions that gpu_fit() calls between epochs.

#' @section Functions between epochs:
#' `callbacks` may hold R functions beside Keras callbacks, named by when they are called:
#' `on_train_begin()`, `on_epoch_begin(epoch)`, `on_epoch_end(epoch, metrics)` and
#' `on_train_end(metrics)`. `epoch` counts from 1. `metrics` is a named numeric vector with `loss`
#' first; names of validation metrics have the prefix `val_`, and a metric whose value is an array
#' has one element per component (`f1_score[1]`). A function may have fewer arguments. The argument
#' `on_epoch_end` is a shortcut for the most common function.
#'
#' A function that returns the string `"stop"` ends the training after the epoch; any other value is
#' ignored. The function may evaluate the model, predict with it and save it. An error in the
#' function reaches you unchanged, with its class, message and a traceback for
#' [rlang::last_trace()]; an interrupt ends the training like any other interrupt. In both cases the
#' model keeps what it has learned. Warnings are signalled when the training has ended. A function
#' called each epoch costs only its own time: the engine stays the same.
#'
#' An R error in a method of a Keras callback, a loss, a layer or a `train_step()` written in R
#' reaches you unchanged too, if reticulate keeps its class (1.46 does; 1.28 passes on the message
#' only).
#' @name gpu_fit
#' @rdname gpu_fit
NULL

# The arguments of each hook, in order. Epochs count from 1; metrics are a named numeric vector.
hook_arguments <- list(
  on_train_begin = character(),
  on_epoch_begin = "epoch",
  on_epoch_end = c("epoch", "metrics"),
  on_train_end = "metrics"
)

# Splits `callbacks` into Keras callbacks and one function for each hook:
# list(keras = list(...), functions = list(on_epoch_end = , ...) or NULL).
as_callbacks <- function(callbacks = list(), on_epoch_end = NULL, call = caller_env()) {
  if (is.null(callbacks)) callbacks <- list()
  if (!rlang::is_bare_list(callbacks)) callbacks <- list(callbacks)
  if (!is.null(on_epoch_end)) {
    check_hook_function(on_epoch_end, call)
    callbacks <- c(callbacks, list(on_epoch_end = on_epoch_end))
  }
  hooks <- rlang::names2(callbacks)
  in_r <- vapply(callbacks, is_r_function, NA)
  for (i in seq_along(callbacks)) {
    check_no_class(callbacks[[i]], call)
    if (in_r[i]) check_hook(hooks[i], call) else check_callback(callbacks[[i]], call)
  }
  functions <- split(callbacks[in_r], factor(hooks[in_r], unique(hooks[in_r])))
  list(
    keras = unname(callbacks[!in_r]),
    functions = if (any(in_r)) Map(hook_caller, names(functions), functions)
  )
}

# The Keras callbacks of an evaluation or a prediction, which calls no functions of R's.
as_keras_callbacks <- function(callbacks, call = caller_env()) {
  found <- as_callbacks(callbacks, call = call)
  if (!is.null(found$functions)) {
    abort_gpukeras(
      "`callbacks` has R functions, which only gpu_fit() calls.",
      code = "spec", hint = "Give Keras callbacks, such as those of keras3's Callback().",
      arg = "callbacks", call = call
    )
  }
  found$keras
}

# keras3's Callback() returns a function that makes the callback.
check_no_class <- function(x, call) {
  if (is.function(x) && exists("__class__", environment(x) %||% emptyenv(), inherits = FALSE)) {
    abort_gpukeras(
      "`callbacks` has a class of keras3's Callback(), not a callback.",
      code = "spec", hint = "Call it: `callbacks = list(MyCallback())`.", arg = "callbacks",
      call = call
    )
  }
}

check_hook_function <- function(x, call) {
  if (!is_r_function(x)) {
    abort_spec(x, "on_epoch_end", "a function such as function(epoch, metrics)", call)
  }
}

check_hook <- function(hook, call) {
  if (!hook %in% names(hook_arguments)) {
    abort_gpukeras(
      if (nzchar(hook)) {
        sprintf("`callbacks` has a function for `%s`, which is not called.", hook)
      } else {
        "A function in `callbacks` has no name, so it is not known when to call it."
      },
      code = "spec", arg = "callbacks", call = call,
      hint = paste0(
        "Names of functions are ", paste(names(hook_arguments), collapse = ", "),
        "; what works on batches must be a Keras callback."
      )
    )
  }
}

# The core checks whether it is a Keras callback.
check_callback <- function(x, call) {
  if (is_dead(x)) {
    abort_spec(x, "callbacks", "a list of Keras callbacks and of functions", call)
  }
}

# The function that Python calls for a hook. It calls all of the user's functions, in order.
hook_caller <- function(hook, functions) {
  fillers <- lapply(functions, as_filler, hook = hook)
  function(...) {
    given <- rlang::set_names(list(...), hook_arguments[[hook]])
    if ("metrics" %in% names(given)) {
      given$metrics <- vapply(as.list(given$metrics), as.numeric, 0)
    }
    keep_condition({
      answers <- lapply(fillers, function(fill) fill(given))
      list(stop = any(vapply(answers, identical, NA, "stop")))
    })
  }
}

# Calls `f` with the arguments that it takes: by name, then by position for parameters without a
# default. The call that an error shows has the hook's name.
as_filler <- function(f, hook) {
  takes <- formals(args(f))
  open <- "..." %in% names(takes)
  needed <- setdiff(names(takes)[vapply(takes, rlang::is_missing, NA)], "...")
  home <- rlang::new_environment(rlang::set_names(list(f), hook))
  function(given) {
    named <- intersect(names(given), names(takes))
    rest <- setdiff(names(given), named)
    places <- utils::head(setdiff(needed, named), length(rest))
    placed <- rest[seq_along(places)]
    values <- c(given[named], rlang::set_names(given[placed], places))
    if (open) values <- c(values, given[setdiff(rest, placed)])
    rlang::exec(hook, !!!values, .env = home)
  }
}
