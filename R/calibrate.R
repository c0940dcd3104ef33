# gpu_calibrate(): what held-out rows say about predictions.

#' Calibrate a model: intervals for numbers, honest probabilities for classes
#'
#' Learns from rows that did not train the model how far its predictions are off, and ties that to
#' the model, as its recipe is; [gpu_save()] saves it, and [gpu_fit()] drops it. Calibrate again
#' after Keras' own `fit()`, or if weights were changed otherwise.
#'
#' - Numbers: split conformal prediction (Lei et al. 2018). `gpu_predict(interval = 0.9)` then gives
#'   intervals that cover the label of a new row with a probability of at least 90%, whatever the
#'   model, if new rows come from the same distribution as these. All have the same width.
#' - Quantiles (`quantiles`, for a model with an output for each): conformalised quantile regression
#'   (Romano, Patterson and Candes 2019). The intervals lie between the pair of quantiles nearest to
#'   the level, moved so that they cover as promised; they are wide where labels vary much.
#'   A model that gives the logits of shares (`"binary_crossentropy"` from logits, labels between 0
#'   and 1) has intervals around shares.
#' - Classes: temperature scaling (Guo et al. 2017). The logits are divided by the number that
#'   minimises the log loss; [gpu_predict()] then returns the calibrated probabilities (of a model
#'   that gives logits, the calibrated logits). The most probable class stays the same.
#'   [gpu_evaluate()], Keras' own functions and the explanations ([gpu_importance()] and others)
#'   keep to the model's own probabilities.
#'
#' Intervals end where labels do: at 0 for the counts and positive numbers, and at 0 and 1 for the
#' shares, that the model's family (or Keras' loss: Poisson, squared logarithmic error, binary
#' cross-entropy) is made for.
#'
#' Rows that early stopping or a choice of settings has seen make intervals a little too narrow;
#' rows that trained the model make them much too narrow. A model therefore keeps digests of its
#' training rows, at most 10,000 of each training by gpukeras, which [gpu_save()] saves too. If rows
#' are found among them, more often than equal rows occur by chance, there is a warning, and
#' `print()` says so. At most 10,000 rows, drawn at random, are kept of numbers. Weights count a row
#' as more or less than one, and only their ratios matter: intervals then cover that share of the
#' weight. `class_weight` of [gpu_dataset()] is for training alone: probabilities are those of the
#' classes as often as they come.
#' @inheritParams gpu_evaluate
#' @param data Rows with labels that did not train the model: a [gpu_dataset()], or a data frame,
#'   matrix or paths of files, as for [gpu_evaluate()].
#' @param part Which rows of a dataset: `"validation"`, `"all"` or `"train"`; `NULL` is the
#'   validation rows if there are any, else all rows.
#' @param quantiles For a model whose outputs are quantiles of a number: their probabilities in
#'   ascending order, such as `c(0.05, 0.5, 0.95)`. `NULL` reads them from the outputs' names, if
#'   these are `"q0.05"` and so on.
#' @return A `gpu_calibration`, which `print()` shows: `$kind` (`"numbers"`, `"quantiles"` or
#'   `"classes"`), `$rows`, `$part`, and `$trained`, the share of the rows that are known to have
#'   trained the model; for classes `$temperature`, and `$log_loss` and `$error` (the
#'   expected calibration error in 15 bins), each `before` and `after`; for numbers `$width`, half
#'   the width of an interval of 90%, or what is added to quantiles at each end.
#' @references Guo, C., Pleiss, G., Sun, Y. and Weinberger, K. Q. (2017). On calibration of modern
#'   neural networks. *ICML*. \doi{10.48550/arXiv.1706.04599}
#'
#'   Lei, J., G'Sell, M., Rinaldo, A., Tibshirani, R. J. and Wasserman, L. (2018). Distribution-free
#'   predictive inference for regression. *Journal of the American Statistical Association* 113.
#'   \doi{10.1080/01621459.2017.1307116}
#'
#'   Romano, Y., Patterson, E. and Candes, E. J. (2019). Conformalized quantile regression.
#'   *NeurIPS*. \doi{10.48550/arXiv.1905.03222}
#' @section Errors:
#' A warning `gpukeras_warning_training_rows` for rows that trained the model.
#' `gpukeras_error_data` for rows without labels or in sequence; `gpukeras_error_model` for a model
#' that does not predict one number or one class a row, or gives numbers outside of 0 to 1 for
#' classes without a loss that takes logits; `gpukeras_error_spec` for bad `quantiles`.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(dist ~ speed, data = cars, validation = 0.4, batch_size = 8)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 50, verbose = FALSE)
#' gpu_calibrate(model, train)
#' gpu_predict(model, data.frame(speed = c(5, 20)), interval = 0.9)
#' @export
gpu_calibrate <- function(model, data, y = NULL, part = NULL, quantiles = NULL, recipe = NULL) {
  refuse_marshalled(model)
  model <- check_model(model)
  check_no_na_options(list(part = part, quantiles = quantiles))
  recipe <- use_recipe(model, recipe)
  data <- as_dataset(data, model, recipe, y, model = model)
  found <- new_gpu_calibration(call_core("calibrate", list(
    model = model, data = data$handle, part = part,
    quantiles = if (!is.null(quantiles)) as_listed(plain_number(quantiles))
  )))
  if (found$trained > 0) warn_gpukeras(explain_trained(found), "training_rows")
  found
}

# Why a calibration on training rows promises too much.
explain_trained <- function(x) {
  c(
    sprintf("%s of the rows trained `model`: %s.", format_trained(x), format_fault(x)),
    i = "Calibrate on rows that did not train it."
  )
}

format_trained <- function(x) {
  if (isTRUE(x$trained < 0.995)) format_percent(x$trained) else "All"
}

format_fault <- function(x) {
  if (identical(x$kind, "classes")) {
    "its probabilities stay too near 0 and 1"
  } else {
    "its intervals are too narrow"
  }
}

new_gpu_calibration <- function(record) {
  for (field in c("log_loss", "error")) {
    values <- as.numeric(unlist(record[[field]]))
    if (length(values) == 2) names(values) <- c("before", "after")
    record[[field]] <- values
  }
  new_result(record, "gpu_calibration")
}

#' @rdname gpu_calibrate
#' @param x A `gpu_calibration`.
#' @param ... Not used.
#' @export
format.gpu_calibration <- function(x, ...) {
  classes <- identical(x$kind, "classes")
  both <- function(values) paste(format_number(values, 3), collapse = " -> ")
  trained <- isTRUE(x$trained > 0)
  share <- tolower(format_trained(x))
  rows <- count_of(x$rows, if (trained) "rows" else "held-out rows")
  format_fields(
    sprintf("<gpu_calibration> %s, from %s", x$kind, rows),
    if (trained) sprintf("training rows (%s): too %s", share, if (classes) "sure" else "narrow"),
    factor = if (classes) sprintf("logits are divided by %s", format_number(x$temperature, 3)),
    "log loss" = if (classes) both(x$log_loss),
    error = if (classes) paste(both(x$error), "(expected calibration error, 15 bins)"),
    "at 90%" = if (!classes) format_width(x)
  )
}

format_width <- function(x) {
  if (is.null(x$width)) {
    return("needs at least 9 rows")
  }
  moved <- identical(x$kind, "quantiles")
  from <- if (moved) "the quantiles, moved outwards by" else "the prediction, plus or minus"
  paste(from, format_number(x$width, 3))
}

# Predictions with intervals, by tidymodels' names of columns.
predict_interval <- function(model, newdata, recipe, interval, type, devices,
                             call = caller_env()) {
  if (!identical(type, "response")) {
    abort_gpukeras(
      sprintf("`interval` needs `type = \"response\"`, not \"%s\".", type),
      code = "spec", arg = "interval", call = call
    )
  }
  check_no_na_options(list(interval = interval), call)
  rows <- as_new_data(newdata, model, recipe, call = call)
  record <- call_core("predict_interval", list(
    model = model, features = rows$features, data = rows$data, interval = interval,
    devices = as_devices(devices)
  ), call = call)
  frame <- data.frame(
    .pred = as.vector(record$values), .pred_lower = as.vector(record$lower),
    .pred_upper = as.vector(record$upper)
  )
  frame[as.integer(record$missing), ] <- NA
  frame
}
