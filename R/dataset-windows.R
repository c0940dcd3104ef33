# Windows of time series: the rows of a data frame, in the order of group and time.

#' @param window For a data frame of time series: the number of rows of a window. See the section on
#'   time series, also for the next seven arguments.
#' @param horizon Rows after a window to predict; 1 by default.
#' @param stride Rows from the start of a window to the start of the next one; 1 by default.
#' @param group Names of the columns that tell the series apart, such as a site; `NULL` for one
#'   series.
#' @param time Name of the column with the times: a `Date`, `POSIXct`, `difftime` or numbers.
#' @param known Names of columns whose values over the horizon are known when predicting, such as
#'   holidays.
#' @param gaps What to do if rows of a group are missing in time: `"refuse"` (the default) raises an
#'   error that names the group and the first gap, `"drop"` leaves out windows across a gap,
#'   `"fill"` repeats the row before the gap for each missing row.
#' @param step Time from row to row: a `difftime`, or a number (of days for a `Date`, of seconds for
#'   a `POSIXct`). `NULL` takes the most common difference.
#' @section Time series:
#' `gpu_dataset(d, window = 48, horizon = 12, group = "site", y = "load", time = "when")` makes a
#' training row of every 48 consecutive rows of a site. Its features have the shape
#' (window, columns): all columns, past values of `y` too, without `time` and `group`, which are
#' features only if `known` names them. Its labels are the next values of `y` with the shape
#' (horizon, targets), where dimensions of 1 are left out. Without `y` there are no labels.
#'
#' Rows are sorted, encoded and stored once, and each window is gathered from them by row numbers,
#' on the device if it holds the rows. Windows never mix groups. `shuffle` shuffles windows.
#'
#' `validation = 0.2` holds out the last fifth of each group's rows, and the recipe learns from the
#' rows before. A window is used for training if all rows to predict are before that border, and for
#' validation if all are after; windows with rows to predict on both sides are left out.
#'
#' With `known`, the model has two inputs: `"window"` and `"known"`, of shape (horizon, columns).
#' Layers such as `layer_lstm()` and `layer_conv_1d()` take windows; [gpu_mlp()] flattens them.
#'
#' [gpu_predict()] returns a data frame with the group, the time and `horizon` (1 for the next row)
#' of each prediction. For new rows it predicts from the last window of each group. With `known`,
#' the last `horizon` rows of each group are then the rows to predict: their `time` and the `known`
#' columns are read, other columns may be `NA`.
#'
#' Times are one step apart up to a thousandth of a step: round times that are not. Daily rows are
#' better a `Date`, because days of a time zone may have 23 or 25 hours; number months, which differ
#' in days. `na = "drop"`, `weights`, `class_weight`, `inputs`, `cache = "disk"` and
#' [gpu_dataset_save()] do not apply to windows.
#' @rdname gpu_dataset
#' @export
gpu_dataset.data.frame <- function(x, y = NULL, ..., window = NULL, horizon = NULL, # nolint
                                   stride = NULL, group = NULL, time = NULL, known = NULL,
                                   gaps = NULL, step = NULL, image = NULL, columns = NULL,
                                   classes = NULL) {
  check_names(x)
  recipe <- recipe_record(list(...)$recipe)
  if (!is.null(image %||% columns %||% classes) || !is.null(image_column(recipe))) {
    return(image_frame(x, y, image, columns, classes, recipe, ...))
  }
  options <- drop_null(list(
    window = window, horizon = horizon, stride = stride, group = group, time = time,
    known = known, gaps = gaps, step = step
  ))
  rule <- recipe$windows
  if (length(options) > 0 || !is.null(rule)) {
    return(window_dataset(x, c(options, list(targets = y)), rule, ...))
  }
  if (rlang::is_string(y) || is.character(y) && length(y) < nrow(x)) {
    for (column in y) check_column(column, x, "y")
    formula <- sum_formula(label_of(y), list(quote(.)), caller_env())
    return(label_dataset(formula, x, ...))
  }
  gpu_dataset.default(x, y, ...)
}

# All columns as features, but not the one that a string names as the weights.
label_dataset <- function(formula, data, ..., weights = NULL, call = caller_env()) {
  column <- if (rlang::is_string(weights)) weights
  if (!is.null(column)) {
    check_column(column, data, "weights", call)
    weights <- data[[column]]
    data <- data[names(data) != column]
  }
  weigh <- if (!is.null(column)) as.name(column)
  formula_dataset(formula, data, ..., weights = weights, weigh = weigh, call = call)
}

window_dataset <- function(x, options, rule, ..., recipe = NULL) {
  if (!is.null(options$step)) {
    options$step <- step_number(options$step, x[[options$time %||% rule$time %||% ""]])
  }
  x <- if (is.null(rule)) x else window_columns(x, recipe_record(recipe))
  features <- as_features(x, "x", zones = zones_of(recipe))
  features$kind <- "windows"
  features <- c(features, drop_null(options))
  gpu_dataset.default(new_source(features, scale = TRUE), ..., recipe = recipe)
}

# A step in the units in which times are sent.
step_number <- function(step, time) {
  if (!inherits(step, "difftime")) {
    return(step)
  }
  units <- if (inherits(time, "difftime")) attr(time, "units") else "secs"
  as.double(step, units = if (inherits(time, "Date")) "days" else units)
}

# The record of a recipe: that of a dataset or a gpu_recipe is the object itself.
recipe_record <- function(recipe, call = caller_env()) {
  if (is.null(recipe) || inherits(recipe, c("gpu_dataset", "gpu_recipe"))) {
    return(recipe)
  }
  call_core("recipe", list(model = as_recipe_source(recipe, call)), call)
}

# The columns of new rows that windows need.
window_columns <- function(data, recipe) {
  rule <- recipe$windows
  columns <- vapply(recipe$columns, `[[`, "", "name")
  needed <- unique(c(columns, rule$time, unlist(rule$group), unlist(rule$targets)))
  data[intersect(needed, names(data))]
}

# New rows as windows, for a recipe that has them.
as_window_features <- function(data, recipe, arg, call = caller_env()) {
  columns <- window_columns(data, recipe)
  features <- as_features(columns, arg, call, recorded_zones(recipe))
  features$kind <- "windows"
  features
}

# Predictions as a data frame: a row for each window and row ahead.
as_forecast <- function(values, record) {
  forecast <- record$forecast
  values <- if (isTRUE(record$logical)) values == 1 else values
  ahead <- as.integer(forecast$horizon)
  targets <- unlist(forecast$targets)
  windows <- length(values) / ahead / length(targets)
  values <- array(as.vector(values), c(windows, ahead, length(targets)))
  groups <- lapply(forecast$groups, function(column) rep(restore_column(column), each = ahead))
  names(groups) <- vapply(forecast$groups, `[[`, "", "name")
  predicted <- lapply(seq_along(targets), function(target) {
    as.vector(t(matrix(values[, , target], windows, ahead)))
  })
  names(predicted) <- targets
  time <- stats::setNames(list(restore_column(forecast$time)), forecast$time$name)
  columns <- c(groups, time, list(horizon = rep(seq_len(ahead), windows)), predicted)
  structure(columns, class = "data.frame", row.names = .set_row_names(windows * ahead))
}

# The values of a column as they were in R; the reverse of as_column().
restore_column <- function(column) {
  values <- as.vector(column$values)
  levels <- as.character(unlist(column$levels))
  switch(column$kind,
    factor = factor(levels[values], levels = levels),
    character = levels[values],
    integer = if (all(values == round(values))) as.integer(values) else values,
    logical = as.logical(values),
    date = as.Date(values, origin = "1970-01-01"),
    time = as.POSIXct(values, origin = "1970-01-01", tz = column$zone),
    duration = as.difftime(values, units = column$units),
    values
  )
}
