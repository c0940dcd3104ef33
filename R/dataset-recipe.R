# gpu_recipe(): the encoding of a dataset as an R value, which outlives the session.

#' The recipe of a dataset or a model, as an R value
#'
#' A recipe holds what `gpu_dataset()` learned from the training rows to encode them: levels, means,
#' standard deviations, replacements of missing values. Within a session, [gpu_fit()] attaches it to
#' the model. For another session, save it beside the model with `saveRDS()`, and pass it to
#' [gpu_predict()], [gpu_evaluate()] or [gpu_dataset()] as `recipe`.
#'
#' @param x A [gpu_dataset()], or a model that [gpu_fit()] has trained.
#' @return A `gpu_recipe`: a list of plain R values, which `print()` shows. gpukeras uses only its
#'   element `portable`: the recipe as text, with all digits of its numbers, so that predictions are
#'   the same bit for bit, also after `saveRDS()`, `dput()` or on another computer. The other
#'   elements are for you to read; changing them has no effect. `summary()` has the same as that of
#'   a [gpu_dataset()]: `$columns` is a data frame of the columns and what was learned about them.
#' @section Errors:
#' `gpukeras_error_data` for a model that [gpu_fit()] has not trained.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' path <- tempfile("cars-")
#' model$save(paste0(path, ".keras"))
#' saveRDS(gpu_recipe(model), paste0(path, ".rds"))
#'
#' # In another session:
#' keras <- reticulate::import("keras")
#' model <- keras$models$load_model(paste0(path, ".keras"))
#' head(gpu_predict(model, mtcars, recipe = readRDS(paste0(path, ".rds"))))
#' @export
gpu_recipe <- function(x) {
  if (inherits(x, "gpu_recipe")) {
    return(x)
  }
  if (inherits(x, "gpu_saved_model") && !is.null(x$record$recipe)) {
    return(new_gpu_recipe(x$record$recipe))
  }
  if (inherits(x, "gpu_marshalled") && !is.null(x$record$recipe)) {
    return(new_gpu_recipe(x$record$recipe))
  }
  x <- resolve_saved(x)
  if (inherits(x, "gpu_dataset")) {
    x <- check_alive(x)$handle
  } else {
    check_model(x, "x")
  }
  new_gpu_recipe(call_core("carry_recipe", list(value = x)))
}

new_gpu_recipe <- function(record) {
  held <- c(list(portable = record$portable), prepared_record(record$recipe))
  new_result(c(record$recipe, held), "gpu_recipe")
}

#' @rdname gpu_recipe
#' @param object A `gpu_recipe`.
#' @param ... Not used.
#' @export
summary.gpu_recipe <- function(object, ...) new_columns_summary(object)

#' @export
format.gpu_recipe <- function(x, ...) {
  formula <- x$formula %||% ""
  format_fields(
    "<gpu_recipe>",
    windows = format_windows(x$windows),
    format_inputs(x),
    columns = if (length(x$columns) > 0) format_rules(x$columns),
    format_outputs(x$label),
    missing = format_policy(x),
    if (nzchar(formula)) format_formula(formula)
  )
}

# Columns with their kinds.
format_rules <- function(columns, most = 8) {
  shown <- vapply(columns, function(rule) {
    standardised <- rule$kind %in% c("number", "duration") && !identical(rule$scale, 1)
    sprintf("%s (%s%s)", rule$name, rule$kind, if (standardised) ", standardised" else "")
  }, "")
  shorten(unname(shown), most)
}

format_policy <- function(x) {
  switch(x$na %||% "error",
    error = "refused",
    drop = "rows that have some are left out",
    impute = "imputed"
  )
}

# The recipe of a model; a given recipe is tied to the model first.
use_recipe <- function(model, recipe, call = caller_env()) {
  if (!is.null(recipe)) {
    source <- as_recipe_source(recipe, call)
    call_core("tie_recipe", list(model = model, recipe = source), call = call)
  }
  call_core("recipe", list(model = model), call = call)
}

# A recipe as text, the argument of the core.
recipe_text <- function(recipe, call = caller_env()) {
  if (!rlang::is_string(recipe$portable)) {
    abort_gpukeras(
      "`recipe` is damaged: its element `portable` is not text.",
      code = "data", hint = "Make it again by gpu_recipe().", arg = "recipe", call = call
    )
  }
  remember_prepared(recipe)
  recipe$portable
}
