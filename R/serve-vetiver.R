# Methods for vetiver, which stores versions of models and serves them by plumber: what vetiver asks
# of a model. They are registered when vetiver is loaded; gpukeras itself needs neither package.

#' Models of gpukeras in vetiver
#'
#' If the package vetiver is installed, `vetiver::vetiver_model()` takes what [gpu_marshal()]
#' returns for a model, and a `gpu_mlp_fit`, the engine fit of parsnip. Then `vetiver_pin_write()`
#' stores it, and `vetiver_api()` serves it by plumber, from R. Workflows need none of this: vetiver
#' takes them as those of other engines. [gpu_serve()] needs neither package, does not keep R busy,
#' and joins requests to batches.
#'
#' A plumber file that vetiver writes does not load gpukeras: add `library(gpukeras)` to it.
#'
#' The input prototype is made of the model's recipe: the names, types and levels of the columns. A
#' formula that computes columns, such as `log(wt)`, does not tell the types of what it is given:
#' pass `prototype_data = `, some rows, to `vetiver_model()`, or `save_prototype = FALSE`.
#' @param object A `gpu_marshalled` model.
#' @param ... Arguments of [gpu_predict()], the first of them the rows. `vetiver_api()` passes those
#'   such as `type = "class"` on.
#' @return What [gpu_predict()] returns. `/predict` of the API returns the same as a data frame,
#'   with the column `.pred` where it has no other names.
#' @section Errors:
#' `gpukeras_error_spec` if the prototype needs `prototype_data`.
#' @examplesIf rlang::is_installed("vetiver") && gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ wt + hp, data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' v <- vetiver::vetiver_model(gpu_marshal(model), "cars")
#' v
#' predict(v, mtcars[1:3, ])
#' @name gpukeras-vetiver
#' @rawNamespace
#' S3method(vetiver::vetiver_create_description, gpu_marshalled, vetiver_description)
#' S3method(vetiver::vetiver_create_description, gpu_mlp_fit, vetiver_description)
#' S3method(vetiver::vetiver_create_meta, gpu_marshalled, vetiver_metadata)
#' S3method(vetiver::vetiver_create_meta, gpu_mlp_fit, vetiver_metadata)
#' S3method(vetiver::vetiver_ptype, gpu_marshalled, vetiver_prototype)
#' S3method(vetiver::vetiver_ptype, gpu_mlp_fit, vetiver_prototype)
#' S3method(vetiver::vetiver_prepare_model, gpu_mlp_fit, gpu_marshal)
#' S3method(vetiver::handler_startup, gpu_marshalled, vetiver_startup)
#' S3method(vetiver::handler_startup, gpu_mlp_fit, vetiver_startup)
#' S3method(vetiver::handler_predict, gpu_marshalled, vetiver_handler)
#' S3method(vetiver::handler_predict, gpu_mlp_fit, vetiver_handler)
NULL

#' @rdname gpukeras-vetiver
#' @export
predict.gpu_marshalled <- function(object, ...) gpu_predict(object, ...)

vetiver_description <- function(model) {
  bytes <- if (inherits(model, "gpu_mlp_fit")) length(model$archive) else sum(lengths(model$files))
  sprintf("A Keras model of gpukeras, %s,", format_bytes(bytes))
}

vetiver_metadata <- function(model, metadata) {
  vetiver::vetiver_meta(metadata, required_pkgs = "gpukeras")
}

# The first request need not wait for TensorFlow.
vetiver_startup <- function(vetiver_model) invisible(resolve_saved(vetiver_model$model))

# `req$body` is a data frame of JSON's types: texts become what the prototype says.
vetiver_handler <- function(vetiver_model, ...) {
  force(vetiver_model)
  function(req) {
    rows <- vetiver::vetiver_type_convert(req$body, vetiver_model$prototype)
    as_prediction_frame(gpu_predict(vetiver_model$model, rows, ...))
  }
}

as_prediction_frame <- function(predicted) {
  if (is.null(dim(predicted)) && !is.list(predicted)) {
    return(data.frame(.pred = as.vector(predicted)))
  }
  as.data.frame(predicted, optional = TRUE)
}

vetiver_prototype <- function(model, ..., prototype_data = NULL) {
  if (!is.null(prototype_data)) {
    check_data_frame(prototype_data)
    return(prototype_data[0, , drop = FALSE])
  }
  columns <- told_columns(gpu_recipe(model))
  if (is.null(columns)) {
    abort_gpukeras(
      "`prototype_data` is needed: the model's recipe does not tell the columns that it is given.",
      code = "spec", arg = "prototype_data",
      hint = "Pass some rows as prototype_data, or save_prototype = FALSE, to vetiver_model()."
    )
  }
  names <- vapply(columns, function(column) column$name, "")
  as.data.frame(rlang::set_names(lapply(columns, empty_column), names), optional = TRUE)
}

# A recipe's columns, if all of them are columns of a data frame and not computed of some; or NULL.
told_columns <- function(recipe) {
  columns <- if (recipe$kind == "columns") recipe$columns
  told <- vapply(columns, function(column) column$kind %in% names(empty_columns), NA)
  if (length(columns) > 0 && all(told) && are_variables(columns, recipe$formula)) columns
}

are_variables <- function(columns, formula) {
  names <- vapply(columns, function(column) column$name, "")
  is.null(formula) ||
    (!is_recipe_key(formula) && all(names %in% all.vars(str2lang(formula))))
}

empty_columns <- list(
  number = function(column) if (isTRUE(column$logical)) logical() else numeric(),
  category = function(column) factor(character(), levels = as_chr(column$levels)),
  date = function(column) structure(numeric(), class = "Date"),
  time = function(column) as.POSIXct(numeric(), tz = column$zone, origin = "1970-01-01")
)

empty_column <- function(column) empty_columns[[column$kind]](column)
