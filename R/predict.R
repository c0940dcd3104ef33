#' Predictions as R values
#'
#' Encodes new rows like the training rows: finds columns by name and factor levels by label, and
#' standardises with the statistics of the training rows. The columns of a matrix are found by name
#' too, if both it and the training matrix have column names; a matrix without names is used by
#' position. Other columns are ignored.
#'
#' @param model A Keras 3 model; or a [gpu_fit_many()] result, of which it gives a data frame of the
#'   mean of the models' predictions, their standard deviation, and the range of the share
#'   `interval` of the models (0.9). Of a grid the models of the best setting count, and of groups
#'   those of each row's own.
#' @param newdata A data frame, matrix (also a sparse one), array or paths of files; a named list of
#'   inputs, if training had one; or a [gpu_dataset()], whose rows are used in their original order;
#'   of a function or a `tf.data.Dataset`, one epoch in its own order. A `tf.data.Dataset` can also
#'   be passed directly.
#' @param type `"response"`: what the model gives: numbers, probabilities of the classes (of the
#'   second one if there are two), or logits, if its loss takes these. `"class"`: the most probable
#'   class, as a factor with the training levels, a logical, or an integer, as the labels were: see
#'   the section on classes. For a model with a [gpu_family()] also `"parameters"`, `"quantile"`,
#'   `"survival"` and `"time"`: see the section on families.
#' @param quantiles Probabilities for `type = "quantile"`; `NULL` is `c(0.1, 0.5, 0.9)`, and those
#'   that were learned for the family `"quantile"`.
#' @param times Times for `type = "survival"`; `NULL` is those of the model.
#' @param interval A probability, such as 0.9: the result is a data frame with the columns `.pred`,
#'   `.pred_lower` and `.pred_upper`, an interval that covers the label with that probability. The
#'   model must have been calibrated on rows that did not train it: see [gpu_calibrate()].
#' @param group For a [gpu_fit_many()] result with a model for each group: the group of each row, if
#'   `newdata` has no column of it.
#' @inheritParams gpu_evaluate
#' @return A vector, or a matrix with one row for each row of `newdata` and a named column for each
#'   class or output, or an array with rows first if the output has more dimensions. For a model
#'   with several outputs, a named list of these; `type = "class"` then returns classes for outputs
#'   that have classes, and numbers for the others. If the shape of an output row varies by batch,
#'   as with padded sequences, a list with the array of each batch. If training had `na = "drop"`,
#'   rows with a missing value get `NA`; a [gpu_dataset()] has already dropped them. For windows of
#'   time series, a data frame: see the section on time series of [gpu_dataset()]. Outputs of 16
#'   bits, as under a mixed precision of [gpu_setup()], are doubles like all others, with the 2 to 3
#'   digits that they have.
#' @section Batches:
#' Rows are predicted in large batches. If what the model gives for a row depends on the other rows
#' of its batch, or changes from call to call (see the section Losses of [gpu_fit()]), batches have
#' 32 rows, as in Keras' own `predict()`, or those of the `tf.data.Dataset` or function, and a
#' message says so.
#' @section Classes:
#' The loss determines how `type = "class"` reads an output. For
#' `"sparse_categorical_crossentropy"` it is the position of the largest value along the last
#' dimension, which is dropped: a vector of integers from 0, as the labels are numbered, or an array
#' with one for each time step or pixel. For `"binary_crossentropy"` and
#' `"binary_focal_crossentropy"` each value is 1 above 0.5 (above 0 if the loss takes logits) and
#' otherwise 0. Labels without levels are integers, also for pipelines, functions and models that
#' gpukeras did not train. Other losses need labels that are classes; a regression is an error. One
#' number a row then means the second of two classes above 0.5, and above 0 for `"hinge"` and
#' `"squared_hinge"`. Numbers outside of 0 to 1 of a loss of your own are an error: they may be
#' logits. Of many models, the class is that of the mean of their probabilities, also where they
#' give logits.
#' @section Families:
#' `"response"` is the mean of a row: for `"zero_inflated_poisson"` that of all counts, for
#' `"binomial"` the probability of a success, for `"beta"` the mean share; for `"multinomial"` and
#' `"ordinal"` it is a matrix of probabilities by class, for `"quantile"` one of quantiles.
#' `"parameters"` is a data frame with a column for each parameter of the distribution, as R's own
#' functions name them: `mean` and `sd`, `shape` (of `"gamma"`) or `size` (of
#' `"negative_binomial"`); `shape1` and `shape2` of `"beta"`; `rate`, `zero` (the probability of a
#' surplus zero) and `nonzero`; `failure` and `success`. `"quantile"` is a data frame with a column
#' for each quantile, of the families `"quantile"`, `"gaussian"` with a dispersion, `"poisson"`,
#' `"negative_binomial"`, `"gamma"` and `"beta"`; others refuse it.
#'
#' Of `"cox"` the response is the relative risk \eqn{e^\eta}, of `"discrete_time"` the mean survival
#' time. `"survival"` is a data frame with the columns `row`, `time` and `survival`, the probability
#' to survive that time. Curves of `"cox"` are steps at times of events, those of `"discrete_time"`
#' are linear between breaks and end at the last. `"time"` is the mean survival time, the area under
#' the curve: up to the last time of an event for `"cox"`, up to the last break for
#' `"discrete_time"`.
#' @section Warnings:
#' `gpukeras_warning_data` names columns with values of which the training rows have taught the
#' model nothing, see [gpu_dataset()].
#'
#' @section Errors:
#' `gpukeras_error_spec` for a type that the model's family does not have.
#' `gpukeras_error_data` for a missing column, a level that training did not see, a column of
#' another type; for `type = "class"` of a regression; for missing values, unless `na` of
#' [gpu_dataset()] specified otherwise in training.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(Species ~ ., data = iris)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 20, verbose = FALSE)
#' table(gpu_predict(model, iris, type = "class"), iris$Species)
#' @export
gpu_predict <- function(model, newdata, type = "response", recipe = NULL, devices = NULL, ...,
                        quantiles = NULL, times = NULL, interval = NULL, group = NULL) {
  check_given(model)
  words <- check_keras_arguments(list(...), c("x", "batch_size", "verbose", "callbacks"))
  check_batch_size(words$batch_size)
  check_string(type)
  check_curve_options(type, quantiles, times)
  if (missing(newdata)) newdata <- words$x
  if (inherits(model, "gpu_fits")) {
    return(predict_fits(model, newdata, type, interval, group))
  }
  if (!is.null(group)) {
    abort_gpukeras(
      "`group` is for results of gpu_fit_many(group = ).",
      code = "spec", hint = "Leave it out.", arg = "group"
    )
  }
  model <- check_model(model)
  recipe <- use_recipe(model, recipe)
  if (!is.null(interval)) {
    return(predict_interval(model, newdata, recipe, interval, type, devices))
  }
  buffer <- output_buffer()
  args <- list(
    model = model, type = type, buffer = buffer$make, devices = as_devices(devices),
    callbacks = as_keras_callbacks(words$callbacks),
    on_event = call_listener(words$verbose %||% TRUE, "predicting", "rows"),
    times = if (!is.null(times)) as.list(plain_number(times))
  )
  newdata <- name_parts(open_saved(newdata), model, "inputs")
  if (is_tf_dataset(newdata)) newdata <- as_dataset(newdata, model, recipe, arg = "newdata")
  if (inherits(newdata, "gpu_dataset")) {
    args$data <- check_alive(newdata)$handle
  } else {
    args$features <- as_new_features(newdata, recipe)
  }
  record <- call_core("predict", args)
  inform_batches(record$note)
  warn_notes(list(notes = record$unlearned))
  if (type %in% c("parameters", "quantile", "survival")) {
    return(as_family_frame(record, type, quantiles))
  }
  as_prediction(record, buffer)
}

# Says, once in a while, that predictions depend on the batch.
inform_batches <- function(note) {
  if (!is.null(note)) {
    rlang::inform(
      c(i = note),
      class = "gpukeras_message", .frequency = "regularly", .frequency_id = "gpukeras_batches"
    )
  }
}

# That of keras3, which has no effect here: the core never sees it.
check_batch_size <- function(batch_size, call = caller_env()) {
  size <- as_batch_size(batch_size, "batch_size", call)
  if (!is.null(size) && !(rlang::is_integerish(size, 1, finite = TRUE) && size >= 1)) {
    abort_spec(size, "batch_size", "a whole number of at least 1", call)
  }
}

# Options of one type, which others would leave out.
check_curve_options <- function(type, quantiles, times, call = caller_env()) {
  given <- c(quantile = "quantiles", survival = "times")[!c(is.null(quantiles), is.null(times))]
  unused <- given[names(given) != type]
  if (length(unused) > 0) {
    abort_gpukeras(
      sprintf("`%s` is for `type = \"%s\"`.", unused[1], names(unused)[1]),
      code = "spec", hint = "Leave it out, or ask for that type.", arg = unused[[1]], call = call
    )
  }
}

as_new_features <- function(newdata, recipe, call = caller_env(), arg = "newdata") {
  if (is.data.frame(newdata)) {
    check_names(newdata, arg, call)
  }
  if (!is.data.frame(newdata) || !nzchar(recipe$formula %||% "")) {
    return(as_new_rows(newdata, recipe, arg, call))
  }
  newdata <- select_features(recipe$formula, newdata, call)
  as_recipe_features(newdata, recipe, arg, call)
}

# A prediction as R values. Large values are in the buffer.
as_prediction <- function(record, buffer) {
  if (!is.null(record$outputs)) {
    names <- vapply(record$outputs, `[[`, "", "name")
    return(stats::setNames(lapply(record$outputs, as_prediction, buffer), names))
  }
  if (!is.null(record$batches)) {
    return(lapply(record$batches, as_prediction, buffer))
  }
  values <- if (identical(record$values, "buffer")) buffer$take() else record$values
  if (length(record$missing) > 0) {
    values[slice.index(values, 1) %in% record$missing] <- NA
  }
  if (!is.null(record$forecast)) {
    return(as_forecast(values, record))
  }
  levels <- unlist(record$levels)
  if (length(levels) > 0) {
    found <- levels[as.vector(values)]
    return(factor(found, levels = levels, ordered = isTRUE(record$ordered)))
  }
  if (length(dim(values)) < 2) {
    values <- as.vector(values)
    return(if (isTRUE(record$logical)) values == 1 else values)
  }
  name_columns(values, unlist(record$names))
}

# Setting the same names again would copy the values.
name_columns <- function(values, names) {
  if (!identical(colnames(values), names) && length(names) == ncol(values)) {
    colnames(values) <- names
  }
  values
}
