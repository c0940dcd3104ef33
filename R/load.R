# gpu_load(): models from files of gpu_save(), and results of gpu_run() that are loaded on first
# use.

# A model or dataset of a child: loaded if TensorFlow already runs, otherwise a gpu_saved object
# with its file. A model that cannot be loaded keeps its file.
keep_saved <- function(packed) {
  saved <- new_saved(packed)
  if (!tensorflow_runs()) {
    return(saved)
  }
  tryCatch(resolve_saved(saved), gpukeras_error_model = function(condition) {
    warn_gpukeras(
      c(said_by(condition), i = "It is given back as a gpu_saved_model: see ?gpu_load."),
      "model"
    )
    saved
  })
}

# A gpu_saved object, whose file is removed by its finalizer, or with the session's folder.
new_saved <- function(packed) {
  state <- new.env(parent = emptyenv())
  state$path <- tempfile(fileext = if (packed$kind == "model") ".keras" else "")
  file.rename(packed$path, state$path)
  session <- Sys.getpid() # a fork must not remove the file
  reg.finalizer(state, function(state) {
    if (Sys.getpid() == session) unlink(state$path, recursive = TRUE)
  })
  new_result(
    list(kind = packed$kind, record = packed$record, state = state),
    c(paste0("gpu_saved_", packed$kind), "gpu_saved")
  )
}

#' Load a saved model
#'
#' `gpu_load(path)` loads a model from a `.keras` file: one of [gpu_save()], with the recipe of its
#' training data, its history and its masks, or one of plain Keras.
#'
#' [gpu_run()] returns a model or dataset as a file if this session has not started TensorFlow.
#' gpukeras functions load it on first use; for other functions, such as those of keras3, load it
#' with `gpu_load(x)`.
#'
#' @section What is refused:
#' A file may come from anywhere, so gpukeras inspects it before Keras loads it, and Keras loads it
#' in its safe mode. Unless `safe_mode` is `FALSE`, no code of the file is run, even if safe mode is
#' switched off globally. These are refused: Python lambdas, such as a Lambda layer's function;
#' pickles; layers that load another program (`TFSMLayer`, `TorchModuleWrapper`, `JaxLayer`,
#' `FlaxLayer`); weights in another file; members outside of the archive's own folder, links,
#' encrypted members and zip bombs; damaged files; and classes and functions that are neither in
#' `custom_objects` nor registered with Keras.
#'
#' A formula in a file is data. [gpu_predict()] and [gpu_evaluate()] accept it if it consists of
#' columns, interactions, offsets, arithmetic, comparisons and functions such as `log()`, `sqrt()`,
#' `ifelse()`, `factor()` and `cut()`, and of `poly()`, `splines::ns()`, `splines::bs()` and
#' `scale()` with the numbers that they have learned; otherwise an error names what it contains. For
#' your own model whose formula calls other functions, give the rows as
#' `gpu_dataset(formula, data = , recipe = model)`; `gpu_load()` warns of such a formula
#' (`gpukeras_warning_formula`). A damaged history is left out, with a note.
#' @section Custom layers, losses and functions:
#' A file holds their names, not their code: [gpu_save()] lists the names. Pass the objects as
#' `custom_objects = list(Scale = Scale, my_loss = my_loss)`: Python classes, results of keras3's
#' `new_layer_class()` and similar functions, R functions. If only `compile()` needs an unknown
#' object, such as a loss, the model is loaded from the path without being compiled, and a message
#' says so: it predicts, and `compile()` makes it trainable, with a new optimizer. A lambda is
#' Python code in the file: it is loaded only with `safe_mode = FALSE`, as in Keras. Python calls
#' R functions all alike unless `attr(f, "py_function_name")` names them; [gpu_save()]
#' warns (`gpukeras_warning_shared_names`) where a file cannot tell them apart.
#' @param x Path of a `.keras` file; or a `gpu_saved_model` or `gpu_saved_dataset` of [gpu_run()].
#'   A model or dataset is returned unchanged.
#' @param custom_objects A named list of classes and functions that the model in a file needs, or
#'   `NULL`.
#' @param safe_mode Whether to refuse a file with a Python lambda. `FALSE` runs the code of the
#'   file: use it only for files that you trust.
#' @return A Keras model, compiled as it was, with its optimizer's state and in the precision that
#'   it was saved in, whatever that of [gpu_setup()]; [gpu_predict()] takes a
#'   data frame again. [read_history()] reads the history in the file, [gpu_recipe()] returns the
#'   recipe of the model. For a `gpu_saved_dataset`, a [gpu_dataset()]. Loading a `gpu_saved` object
#'   twice returns the same object; a path is read again each time. `gpu_recipe(x)` and `print()` of
#'   a `gpu_saved` object load nothing.
#' @section Errors:
#' `gpukeras_error_model` for a file that does not exist or is refused, `gpukeras_error_spec` if the
#' path does not end with `.keras`.
#' @seealso [gpu_save()], [gpu_export()]
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' path <- gpu_save(model, tempfile("cars-", fileext = ".keras"))
#' again <- gpu_load(path)
#' head(gpu_predict(again, mtcars))
#' @export
gpu_load <- function(x, custom_objects = NULL, safe_mode = TRUE) {
  check_given(x)
  check_flag(safe_mode)
  needs <- list(custom_objects = as_custom_objects(custom_objects), safe_mode = safe_mode)
  if (!rlang::is_string(x)) {
    return(check_loaded(resolve_saved(x, needs = needs), x))
  }
  check_local_path(x)
  record <- call_core("load_archive", list(
    path = absolute_paths(x), arg = "x", custom_objects = needs$custom_objects,
    safe_mode = safe_mode
  ))
  inform_uncompiled(record$left, x)
  if (is.null(record$recipe)) {
    why <- if (record$ours) {
      "has no recipe: gpu_fit() had not trained it."
    } else {
      "is a file of plain Keras: it has no recipe."
    }
    inform_gpukeras(i = paste(basename(x), why, "gpu_predict() takes rows as the model does."))
  }
  if (nzchar(record$history_fault)) {
    inform_gpukeras(
      i = paste0("The history in ", basename(x), " is left out: ", record$history_fault, ".")
    )
  }
  warn_disallowed(record$recipe$recipe$formula %||% "", x)
  record$model
}

# What was given is a model, a dataset or another object of this package; any other is refused.
check_loaded <- function(loaded, x, call = caller_env()) {
  if (!inherits(loaded, "python.builtin.object") && !any(startsWith(class(loaded), "gpu_"))) {
    abort_spec(x, "x", "the path of a .keras file, a model or a dataset", call)
  }
  loaded
}

# Says early that predictions of a data frame will be refused.
warn_disallowed <- function(formula, path) {
  if (!nzchar(formula) || is_recipe_key(formula)) { # a recipe of tidymodels has no formula
    return()
  }
  tryCatch(read_formula(formula), gpukeras_error_data = function(condition) {
    file <- basename(path)
    warn_gpukeras(
      c(
        sprintf("%s is loaded, but its formula will not be applied to a data frame.", file),
        x = condition$message, i = condition$hint
      ),
      "formula"
    )
  })
}

# Says which unknown names compile() needs.
inform_uncompiled <- function(left, path) {
  if (length(left) > 0) {
    inform_gpukeras(
      i = sprintf(
        "%s is loaded, but not compiled: its compile() needs %s.",
        basename(path), paste(unlist(left), collapse = ", ")
      ),
      i = "Give it by `custom_objects`, or call compile() before training."
    )
  }
}

# Classes and functions by the names that Keras wrote. keras3 wraps an R class into a function with
# the class as attribute. An R function gets its name in Python, so that the model can be saved
# again.
as_custom_objects <- function(objects, call = caller_env()) {
  if (is.null(objects)) {
    return(NULL)
  }
  names <- names(objects) %||% ""
  if (!rlang::is_bare_list(objects) || !all(nzchar(names)) || anyDuplicated(names)) {
    abort_gpukeras(
      "`custom_objects` must be a list with a name of its own for each element.",
      code = "spec", hint = "Such as list(my_loss = my_loss).", arg = "custom_objects", call = call
    )
  }
  Map(as_custom_object, objects, names, list(call))
}

as_custom_object <- function(object, name, call) {
  object <- attr(object, "Layer", exact = TRUE) %||% object
  if (inherits(object, c("python.builtin.object", "R6ClassGenerator"))) {
    return(object)
  }
  if (!is.function(object)) {
    abort_spec(
      object, sprintf("custom_objects$%s", name), "a function, or a class of Python or keras3", call
    )
  }
  wrapped <- get0("__class__", environment(object), inherits = FALSE)
  if (is.null(wrapped)) {
    attr(object, "py_function_name") <- name
  }
  wrapped %||% object
}

# The model or dataset of a gpu_saved object, a parsnip fit, a compression or a marshalled value;
# anything else as it is.
resolve_saved <- function(x, call = caller_env(), needs = NULL) {
  if (inherits(x, "gpu_mlp_fit")) {
    return(model_of_fit(x, call))
  }
  if (inherits(x, "gpu_compression")) {
    return(x$model)
  }
  if (inherits(x, "gpu_marshalled")) {
    return(resolve_marshalled(x, call))
  }
  if (!inherits(x, "gpu_saved")) {
    return(x)
  }
  state <- x$state
  if (is.null(state$live)) {
    state$live <- load_saved(x, call, needs)
  }
  state$live
}

load_saved <- function(x, call, needs = NULL) {
  path <- x$state$path
  if (!file.exists(path)) {
    abort_gpukeras(
      sprintf("This gpu_saved_%s is from another R session: its file is gone.", x$kind),
      code = if (x$kind == "model") "model" else "data", hint = "Make it again.", call = call
    )
  }
  live <- load_packed(list(kind = x$kind, path = path, record = x$record), call, needs)
  if (x$kind == "model") {
    unlink(path)
  } else {
    attr(live, "files") <- x$state # keeps the files as long as the dataset reads from them
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
      "model:    %s \"%s\", %s, %s", record$kind, record$name,
      count_of(record$parameters, "weights"), format_bytes(record$bytes)
    ),
    if (!is.null(recipe)) format(new_gpu_recipe(recipe))[-1]
  )
}
