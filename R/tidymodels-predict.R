# Predictions of models that parsnip has fitted with the engine "gpukeras", as it asks for them.

#' @param object The value of `extract_fit_engine()`.
#' @param new_data A data frame.
#' @param type The type of prediction, as parsnip names it: see the section on the engine.
#' @param eval_time Times of `type = "survival"`.
#' @param level The probability of the interval of `type = "pred_int"`.
#' @rdname gpukeras-tidymodels
#' @export
predict.gpu_mlp_fit <- function(object, new_data, type = "raw", ..., eval_time = NULL,
                                level = 0.95) {
  check_string(type)
  read <- prediction_types[[type]]
  if (is.null(read)) {
    abort_spec(
      type, "type", paste("one of", shorten(names(prediction_types), 9)), rlang::current_env()
    )
  }
  read(object, new_data, list(eval_time = eval_time, level = level))
}

# How each type of prediction of parsnip's is read, from a fit, new rows and options.
prediction_types <- list(
  raw = function(object, new_data, options) gpu_predict(object, new_data),
  numeric = function(object, new_data, options) {
    predicted <- gpu_predict(object, new_data)
    if (is.list(predicted)) as.data.frame(predicted, optional = TRUE) else predicted
  },
  class = function(object, new_data, options) {
    classes <- as.character(gpu_predict(object, new_data, type = "class"))
    factor(classes, levels = object$levels)
  },
  prob = function(object, new_data, options) {
    as_probabilities(gpu_predict(object, new_data), object$levels)
  },
  quantile = function(object, new_data, options) gpu_predict(object, new_data),
  pred_int = function(object, new_data, options) {
    quantiles <- c((1 - options$level) / 2, (1 + options$level) / 2)
    ends <- gpu_predict(object, new_data, type = "quantile", quantiles = quantiles)
    stats::setNames(ends, c(".pred_lower", ".pred_upper"))
  },
  time = function(object, new_data, options) gpu_predict(object, new_data, type = "time"),
  survival = function(object, new_data, options) {
    as_curves(gpu_predict(object, new_data, type = "survival", times = options$eval_time))
  },
  linear_pred = function(object, new_data, options) log(predict_risk(object, new_data))
)

# A list column with a table of times and probabilities for each row.
as_curves <- function(frame) {
  times <- frame$time[frame$row == 1]
  chances <- matrix(frame$survival, length(times))
  curves <- lapply(seq_len(ncol(chances)), function(row) {
    as_tibble_class(list(.eval_time = times, .pred_survival = chances[, row]))
  })
  as_tibble_class(list(.pred = curves))
}

# tibble itself is not needed for that.
as_tibble_class <- function(columns) {
  rows <- .set_row_names(length(columns[[1]]))
  structure(columns, class = c("tbl_df", "tbl", "data.frame"), row.names = rows)
}

predict_risk <- function(object, new_data, call = caller_env(2)) {
  risk <- gpu_predict(object, new_data, type = "parameters")$risk
  if (is.null(risk)) {
    abort_gpukeras(
      "`type = \"linear_pred\"` needs a model of the family \"cox\".",
      code = "spec", arg = "type", call = call
    )
  }
  risk
}

# A linear predictor that rises with the time, as those of other models, unless told otherwise: the
# package censored turns the sign of that of coxph(), too.
#' @rawNamespace S3method(parsnip::predict_linear_pred,"_gpu_mlp_fit")
`predict_linear_pred._gpu_mlp_fit` <- function(object, new_data, ..., increasing = TRUE) { # nolint
  predicted <- NextMethod()
  if (increasing) -predicted else predicted
}

# A column for each level, in order; for two classes only the second one's is predicted.
as_probabilities <- function(predicted, levels) {
  if (!is.matrix(predicted)) {
    predicted <- cbind(1 - predicted, predicted)
    colnames(predicted) <- levels
  }
  as.data.frame(predicted)[levels]
}
