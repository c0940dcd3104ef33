# Settings of gpu_tune(): ranges, values, and conditions between settings.

#' Settings for a search
#'
#' What [gpu_tune()] tries for an argument of the builder: any number of a range, or one of several
#' values.
#'
#' @param low,high The smallest and the largest value of a range.
#' @param log Whether equal ratios, not equal differences, are equally likely: for learning rates
#'   and penalties.
#' @param integer Whether only whole numbers are tried, both ends included. The default is `TRUE`
#'   if both ends are R's integers, as in `tune_range(16L, 256L)`.
#' @param ... Values to choose from: numbers, strings, `TRUE` or `FALSE`, or vectors of these such
#'   as `c(64, 32)`. A factor or vector alone is not taken apart: write `tune_values("a", "b")`.
#' @param when Named list of the values of other settings at which this one applies, such as
#'   `list(optimizer = "sgd")`. Elsewhere the builder is called without it, so that its default
#'   holds. The other settings are of `tune_values()`.
#' @return A `gpu_setting` for [gpu_tune()].
#' @section Errors:
#' `gpukeras_error_spec` for what is no range or no value, such as a range that ends before it
#' begins; by [gpu_tune()], with the name of the setting, where a condition is never met.
#' @examples
#' tune_range(1e-4, 1e-1, log = TRUE)
#' tune_range(16L, 256L, log = TRUE)
#' tune_values("adam", "sgd")
#' tune_range(0, 0.99, when = list(optimizer = "sgd"))
#' @export
tune_range <- function(low, high, log = FALSE, integer = is.integer(low) && is.integer(high),
                       when = list()) {
  low <- check_bound(low)
  high <- check_bound(high)
  check_flag(log)
  check_flag(integer)
  check_range(low, high, log)
  new_setting(
    list(kind = "range", low = low, high = high, log = log, integer = integer), check_when(when)
  )
}

#' @rdname tune_range
#' @export
tune_values <- function(..., when = list()) {
  values <- lapply(list(...), plain_number, arg = "...")
  if (length(values) == 0) {
    abort_gpukeras("`tune_values()` needs at least one value.", code = "spec", arg = "...")
  }
  lapply(values, check_value, arg = "...", call = environment())
  new_setting(list(kind = "values", values = lapply(unname(values), as_value)), check_when(when))
}

check_bound <- function(x, arg = caller_arg(x), call = caller_env()) {
  force(arg)
  x <- plain_number(x, arg, call)
  if (!is.numeric(x) || length(x) != 1 || is.na(x)) {
    abort_spec(x, arg, "a number", call)
  }
  x
}

# As the core says it of the ranges of dials, by their names.
check_range <- function(low, high, log, call = caller_env()) {
  ends <- sprintf("`tune_range()` ranges from %s to %s", format_number(low), format_number(high))
  if (low >= high) {
    abort_gpukeras(
      sprintf("%s: the first must be below the second.", ends),
      code = "spec", arg = "high", call = call
    )
  }
  if (log && low <= 0) {
    abort_gpukeras(
      sprintf("%s with log = TRUE, which starts above 0.", ends),
      code = "spec", arg = "low", call = call
    )
  }
}

check_value <- function(x, arg, call) {
  if (!is.atomic(x) || length(x) == 0 || anyNA(x)) {
    expected <- "numbers, strings, TRUE or FALSE, without missing values"
    abort_spec(x, arg, expected, call)
  }
}

# Values that reticulate hands over as they are: one value, or a list of several.
as_value <- function(x) {
  x <- if (is.factor(x)) as.character(x) else unname(x)
  if (length(x) == 1) x else as.list(x)
}

check_when <- function(when, call = caller_env()) {
  expected <- "a list of values by the names of settings, such as list(optimizer = \"sgd\")"
  when <- plain_arguments(check_options(when, "when", expected, call), call)
  lapply(when, check_value, arg = "when", call = call)
  lapply(when, function(values) as.list(as_value(values)))
}

new_setting <- function(record, when) {
  record$when <- when
  new_result(record, "gpu_setting")
}

#' @export
format.gpu_setting <- function(x, ...) {
  shown <- if (x$kind == "range") {
    words <- c(if (x$integer) "whole numbers", if (x$log) "on a log scale")
    paste(c(sprintf("%s to %s", format_number(x$low), format_number(x$high)), words),
      collapse = ", "
    )
  } else {
    paste(vapply(x$values, format_choice, ""), collapse = ", ")
  }
  when <- vapply(names(x$when), function(name) {
    sprintf("%s is %s", name, paste(vapply(x$when[[name]], format_choice, ""), collapse = " or "))
  }, "")
  paste0(
    sprintf("<gpu_setting> %s", shown),
    if (length(when) > 0) sprintf(", when %s", paste(when, collapse = " and "))
  )
}

# A value of a setting as R writes it.
format_choice <- function(value) {
  value <- unlist(value)
  one <- if (is.numeric(value)) format_number(value) else encode_value(value)
  if (length(one) == 1) one else sprintf("c(%s)", paste(one, collapse = ", "))
}

encode_value <- function(value) {
  if (is.character(value)) encodeString(value, quote = "\"") else as.character(value)
}

# Everything in `...` of gpu_tune() as the core takes it. A plain value is fixed; dials' parameters
# are ranges or values.
as_settings <- function(given, call) {
  given <- splice_parameters(given)
  names <- rlang::names2(given)
  if (!all(nzchar(names)) || anyDuplicated(names)) {
    abort_gpukeras(
      "Settings in `...` must have different names: those of the builder's arguments.",
      code = "spec", arg = "...", call = call,
      hint = "Such as learning_rate = tune_range(1e-4, 1e-1, log = TRUE)."
    )
  }
  Map(function(setting, name) unclass(as_setting(setting, name, call)), given, names)
}

# A `parameters` object of dials stands for its parameters, by their ids.
splice_parameters <- function(given) {
  several <- vapply(given, inherits, NA, what = "parameters")
  parts <- lapply(seq_along(given), function(place) {
    one <- given[[place]]
    if (several[[place]]) rlang::set_names(one$object, one$id) else given[place]
  })
  unlist(parts, recursive = FALSE)
}

as_setting <- function(x, name, call) {
  if (inherits(x, "gpu_setting")) {
    return(x)
  }
  if (inherits(x, "param")) {
    return(as_dials_setting(x, name, call))
  }
  check_value(x, name, call)
  new_setting(list(kind = "values", values = list(as_value(x))), list())
}

# A parameter of dials: its range, or its values, are in units of its transformation.
as_dials_setting <- function(x, name, call) {
  logs <- c("log-10" = 10, "log-2" = 2, "log-e" = exp(1), "log" = exp(1))
  scale <- x$trans$name %||% "identity"
  bounds <- x$range
  known <- is.numeric(bounds$lower) && is.numeric(bounds$upper) && !anyNA(unlist(bounds))
  if (!scale %in% c("identity", names(logs)) || is.null(x$values) && !known) {
    abort_gpukeras(
      sprintf("`%s` is a parameter of dials without a range that gpu_tune() knows.", name),
      code = "spec", hint = "Finalize it, or use tune_range().", arg = name, call = call
    )
  }
  log <- scale != "identity"
  in_units <- function(values) if (log) logs[[scale]]^values else values
  if (!is.null(x$values)) {
    values <- lapply(in_units(x$values), as_value)
    return(new_setting(list(kind = "values", values = values), list()))
  }
  integer <- identical(x$type, "integer")
  new_setting(list(
    kind = "range", low = in_units(bounds$lower), high = in_units(bounds$upper),
    log = log, integer = integer
  ), list())
}

# The rows of `grid` as lists of settings.
as_grid <- function(grid, call) {
  if (is.null(grid)) {
    return(NULL)
  }
  check_data_frame(grid, "grid", call)
  lapply(seq_len(nrow(grid)), function(row) {
    cells <- lapply(grid, function(column) unlist(column[row]))
    Map(function(cell, name) {
      check_value(cell, paste0("grid$", name), call)
      as_value(cell)
    }, cells, names(grid))
  })
}
