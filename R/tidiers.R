# tidy(), glance() and augment() of the package generics, which broom and parsnip use too. They are
# registered when generics is loaded, and gpukeras needs it for nothing else.

#' Results as data frames: tidy(), glance() and augment()
#'
#' Methods for the generics of the package generics, which broom and tidymodels load. Columns have
#' broom's names.
#'
#' @param x A [gpu_summary()], [gpu_history], [gpu_importance()] or [gpu_effects()]; for `augment()`
#'   a [gpu_summary()] or the `gpu_mlp_fit` of [gpukeras-tidymodels].
#' @param newdata A data frame.
#' @param ... Not used.
#' @return Data frames.
#' - `tidy()`: of a summary `term`, `estimate` and, for several linear predictors, `predictor`; of a
#'   history `epoch`, `data`, `metric` and `value`; of an importance or effects their
#'   `as.data.frame()`.
#' - `glance()`: one row. Of a summary `null.deviance`, `df.null`, `logLik`, `AIC`, `BIC`,
#'   `deviance`, `df.residual` and `nobs`, `NA` where the model does not define them; of a history
#'   `epochs`, `rows`, the last value of each metric, `elapsed_s`, `samples_per_s` and `engine`.
#' - `augment()`: `newdata` with `.fitted`, and `.resid` if the label is a numeric column of
#'   `newdata` that the formula names; for classes `.pred_class` and a column `.pred_<level>` for
#'   each level; for several numbers a row a column `.fitted_<name>` each.
#' @section Errors:
#' `gpukeras_error_model` for a summary whose model is from another session.
#' @examplesIf rlang::is_installed("generics") && gpukeras:::can_run_examples()
#' train <- gpu_dataset(count ~ spray, data = InsectSprays, batch_size = 24)
#' model <- gpu_mlp(train, units = integer(), family = "poisson", learning_rate = 0.05)
#' fit <- gpu_fit(model, train, epochs = 60, verbose = FALSE)
#' generics::glance(fit)
#' summary <- gpu_summary(model, InsectSprays)
#' generics::tidy(summary)
#' generics::glance(summary)
#' head(generics::augment(summary, InsectSprays))
#' @name gpukeras-tidiers
NULL

# nolint start: object_name_linter. The generics are not imported, so that lintr does not know them.

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::tidy
tidy.gpu_summary <- function(x, ...) x$coefficients

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::tidy
tidy.gpu_history <- function(x, ...) {
  as.data.frame(x)[c("epoch", "data", "metric", "value")]
}

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::tidy
tidy.gpu_importance <- function(x, ...) as.data.frame(x)

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::tidy
tidy.gpu_effects <- function(x, ...) as.data.frame(x)

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::glance
glance.gpu_summary <- function(x, ...) {
  data.frame(
    null.deviance = x$null_deviance %||% NA_real_, df.null = x$df_null %||% NA_integer_,
    logLik = x$log_likelihood %||% NA_real_, AIC = x$aic %||% NA_real_, BIC = x$bic %||% NA_real_,
    deviance = x$deviance %||% NA_real_, df.residual = x$df_residual %||% NA_integer_,
    nobs = if (x$family == "cox") x$rows else x$nobs %||% x$rows
  )
}

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::glance
glance.gpu_history <- function(x, ...) {
  last <- lapply(metric_values(x), last_value)
  data.frame(
    epochs = x$epochs, rows = x$rows, last, elapsed_s = x$elapsed_s,
    samples_per_s = x$samples_per_s, engine = x$engine$engine, check.names = FALSE
  )
}

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::augment
augment.gpu_summary <- function(x, newdata, ...) {
  check_data_frame(newdata)
  model <- x$state$model
  predicted <- predict_means(model, newdata)
  if (x$family %in% c("binomial", "multinomial", "ordinal") && has_classes(model)) {
    classes <- gpu_predict(model, newdata, type = "class")
    return(add_classes(newdata, classes, as_probabilities(predicted, levels(classes))))
  }
  add_fitted(newdata, predicted, x$formula)
}

#' @rdname gpukeras-tidiers
#' @exportS3Method generics::augment
augment.gpu_mlp_fit <- function(x, newdata, ...) {
  check_data_frame(newdata)
  if (length(x$levels) == 0) {
    return(add_fitted(newdata, gpu_predict(x, newdata)))
  }
  classes <- stats::predict(x, newdata, type = "class")
  add_classes(newdata, classes, stats::predict(x, newdata, type = "prob"))
}

# nolint end

# Whether labels were a factor or texts.
has_classes <- function(model) length(gpu_recipe(model)$label$levels) > 0

add_classes <- function(newdata, classes, probabilities) {
  newdata$.pred_class <- classes
  newdata[paste0(".pred_", names(probabilities))] <- as.list(probabilities)
  newdata
}

# Several numbers a row, or several outputs, have a column each.
add_fitted <- function(newdata, predicted, formula = "") {
  if (is.list(predicted) || is.matrix(predicted)) {
    predicted <- as.data.frame(predicted)
    newdata[paste0(".fitted_", names(predicted))] <- as.list(predicted)
    return(newdata)
  }
  newdata$.fitted <- predicted
  label <- label_in(formula, newdata)
  if (!is.null(label)) newdata$.resid <- label - predicted
  newdata
}

# The label that a formula names, if it is a numeric column; else NULL. The text may come from a
# file, and is only parsed.
label_in <- function(formula, newdata) {
  code <- tryCatch(rlang::parse_expr(formula), error = function(condition) NULL)
  named <- rlang::is_formula(code, lhs = TRUE) && is.symbol(code[[2]])
  label <- if (named) plain_column(newdata[[as.character(code[[2]])]])
  if (is.numeric(label)) as.numeric(label)
}
