# Models and datasets that gpu_run() brought back as files, and that are loaded on first use.

# What stands here for a model or a dataset of a child: itself if TensorFlow runs already, else its
# file. A model that cannot be loaded is not lost: its file stays.
keep_saved <- function(packed) {
  saved <- new_saved(packed)
  if (!tensorflow_runs()) {
    return(saved)
  }
  tryCatch(as_live(saved), gpukeras_error_model = function(condition) {
    rlang::warn(
      c(conditionMessage(condition), i = "It is given back as a gpu_saved_model: see ?gpu_load."),
      class = c("gpukeras_warning_model", "gpukeras_warning")
    )
    saved
  })
}

# A file of one's own, which goes with the last use of it, or with the session's folder.
new_saved <- function(packed) {
  state <- new.env(parent = emptyenv())
  state$path <- tempfile(fileext = if (packed$kind == "model") ".keras" else "")
  file.rename(packed$path, state$path)
  session <- Sys.getpid() # a fork of it must leave the file
  reg.finalizer(state, function(state) {
    if (Sys.getpid() == session) unlink(state$path, recursive = TRUE)
  })
  structure(
    list(kind = packed$kind, record = packed$record, state = state),
    class = c(paste0("gpu_saved_", packed$kind), "gpu_saved")
  )
}

#' Load what gpu_run() brought back
#'
#' Where this session has not started TensorFlow, [gpu_run()] gives models and datasets back as
#' files. Functions of gpukeras load them on first use; for others, such as keras3's, this does.
#'
#' @param x A `gpu_saved_model` or `gpu_saved_dataset`; anything else is given back as it is.
#' @return `gpu_load()`: a Keras model, with its optimizer's state and recipe, or a [gpu_dataset()].
#'   Loading twice gives the same one. `gpu_recipe(x)` and `print()` load nothing.
#' @section Errors:
#' `gpukeras_error_model` for a model that Keras' safe mode does not load: one with a Lambda layer,
#' or with classes that are not registered with Keras. The file is `x$state$path`.
#' @examplesIf interactive()
#' model <- gpu_run(function(data) gpu_mlp(gpu_dataset(mpg ~ ., data = data)), list(mtcars))
#' gpu_load(model)
#' @export
gpu_load <- function(x) as_live(x)

# The model or dataset that a gpu_saved one stands for; anything else as it is.
as_live <- function(x, call = caller_env()) {
  if (!inherits(x, "gpu_saved")) {
    return(x)
  }
  state <- x$state
  if (is.null(state$live)) {
    state$live <- load_saved(x, call)
  }
  state$live
}

load_saved <- function(x, call) {
  path <- x$state$path
  if (!file.exists(path)) {
    abort_gpukeras(
      sprintf("This gpu_saved_%s is from another R session: its file is gone.", x$kind),
      code = if (x$kind == "model") "model" else "data", hint = "Make it again.", call = call
    )
  }
  live <- load_packed(list(kind = x$kind, path = path, record = x$record), call)
  if (x$kind == "model") {
    unlink(path)
  } else {
    attr(live, "files") <- x$state # which go when nobody reads rows from them any more
  }
  live
}

#' @export
format.gpu_saved <- function(x, ...) {
  c(
    sprintf("<%s> %s", class(x)[1], if (is.null(x$state$live)) "not loaded" else "loaded"),
    if (x$kind == "model") format_saved_model(x$record) else x$record$text
  )
}

format_saved_model <- function(record) {
  recipe <- record$recipe
  c(
    sprintf(
      "model:    %s \"%s\", %s weights, %s", record$kind, record$name,
      count_text(record$parameters), format_bytes(record$bytes)
    ),
    if (!is.null(recipe)) format(new_gpu_recipe(recipe))[-1]
  )
}

#' @export
print.gpu_saved <- function(x, ...) {
  cli::cat_line(format(x, ...))
  invisible(x)
}
