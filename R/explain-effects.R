# gpu_effects(): how predictions change with a column.

#' Effects of columns on predictions
#'
#' `kind = "partial_dependence"` is the mean prediction if all rows had the same value of a column
#' (Friedman 2001), for numbers and factors. Where columns are correlated it asks the model about
#' rows that do not exist. `kind = "ale"` gives accumulated local effects (Apley and Zhu 2020): each
#' row is moved to the ends of the interval that its value lies in, the mean differences are summed
#' up, and the mean over the rows is 0. Both predict the rows of many values in one call, with the
#' probabilities of [gpu_calibrate()] if the model has them.
#'
#' Means over rows are weighted by the weights of a [gpu_dataset()], or of a data frame by the term
#' `weights` of the training's formula, so that they estimate those of the population that the
#' weights stand for; `print()` says so. `class_weight` is for training alone. Intervals and values
#' are chosen by rows with a weight above 0. Rows of matrices, of files and of a recipe of the
#' package recipes count as one: give them as a [gpu_dataset()] with `weights`.
#'
#' @inheritParams gpu_importance
#' @param data A [gpu_dataset()]; or a data frame, matrix or paths of files as for [gpu_predict()].
#'   Labels are not needed. Rows that come in sequence are refused.
#' @param columns Names of columns, as in [gpu_importance()]; `NULL` takes all that hold numbers,
#'   and factors for partial dependence.
#' @param kind `"partial_dependence"` or `"ale"`.
#' @param grid For partial dependence the number of values, evenly spaced from the smallest to the
#'   largest one of the column, or its own values if they are fewer; for `"ale"` the number of
#'   intervals, with about the same number of rows.
#' @param individual How many rows, drawn at random, get a curve of their own: individual
#'   conditional expectation (Goldstein et al. 2015). Partial dependence only.
#' @param seed Seed of that draw.
#' @return A `gpu_effects`: a data frame with the columns `column`, `output` (a class, a parameter
#'   of a family, or the number of an output), `value` (a number; for a factor the number of its
#'   level), `level` (`NA` for numbers), `effect` and `rows` (at a level, or in the interval that
#'   ends at a value; 0 for the values of partial dependence). `attr(, "individual")` has the curves
#'   of single rows: `row`, `column`, `output`, `value`, `level` and `effect`. `plot()` and
#'   `ggplot2::autoplot()` draw it.
#' @references Apley, D. W. and Zhu, J. (2020). Visualizing the effects of predictor variables in
#'   black box supervised learning models. *Journal of the Royal Statistical Society: Series B* 82.
#'   \doi{10.1111/rssb.12377}
#'
#'   Friedman, J. H. (2001). Greedy function approximation: a gradient boosting machine. *Annals of
#'   Statistics* 29. \doi{10.1214/aos/1013203451}
#'
#'   Goldstein, A., Kapelner, A., Bleich, J. and Pitkin, E. (2015). Peeking inside the black box.
#'   *Journal of Computational and Graphical Statistics* 24. \doi{10.1080/10618600.2014.907095}
#' @section Errors:
#' `gpukeras_error_spec` for an unknown column, or one of which no curve can be drawn;
#' `gpukeras_error_data` for rows without columns, such as images, or in sequence;
#' `gpukeras_error_model` for a model with several outputs, or one that does not fit the rows.
#' @seealso [gpu_importance()], [gpu_attributions()].
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ wt + hp + factor(cyl), data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 20, verbose = FALSE)
#' effects <- gpu_effects(model, mtcars, individual = 10)
#' effects
#' plot(effects)
#' gpu_effects(model, mtcars, "wt", kind = "ale", grid = 5)
#' @export
gpu_effects <- function(model, data, columns = NULL, kind = "partial_dependence", grid = 20,
                        individual = 0, part = "all", seed = 1, recipe = NULL, verbose = TRUE) {
  model <- check_model(model)
  options <- list(columns = columns, kind = kind, grid = grid, individual = individual, seed = seed)
  check_no_na_options(options)
  recipe <- use_recipe(model, recipe)
  rows <- as_new_data(data, model, recipe, "data")
  new_gpu_effects(call_core("effects", list(
    model = model, data = rows$data, features = rows$features, columns = as_names(columns),
    kind = kind, grid = grid, individual = individual, part = part, seed = seed,
    weights = if (is.data.frame(data)) new_row_weights(data, recipe),
    on_event = call_listener(verbose, "varying", "columns")
  )))
}

# The weights of a data frame by the term of the training's formula; NULL without one.
new_row_weights <- function(data, recipe, call = caller_env()) {
  weights <- recipe_weights(recipe$formula, data, call)
  if (!is.null(weights)) as_weights(weights, call)
}

# Rows without labels as arguments of the core: `data`, a dataset's handle, or `features`.
as_new_data <- function(data, model, recipe, arg = "newdata", call = caller_env()) {
  check_given(data, arg, call)
  data <- name_parts(open_saved(data), model, "inputs")
  if (is_tf_dataset(data)) data <- as_dataset(data, model, recipe, arg = arg, call = call)
  if (inherits(data, "gpu_dataset")) {
    return(list(data = check_alive(data, call)$handle))
  }
  list(features = as_new_features(data, recipe, call, arg))
}

new_gpu_effects <- function(record) {
  parts <- lapply(record$columns, effect_frame)
  frame <- do.call(rbind, parts)
  own <- lapply(record$columns, individual_frame, rows = as.integer(unlist(record$individual)))
  attributes(frame)[c("kind", "sample")] <- record[c("kind", "rows")]
  attr(frame, "weighted") <- isTRUE(record$weighted)
  attr(frame, "individual") <- do.call(rbind, own)
  new_result_frame(frame, "gpu_effects")
}

# A column's curves, a row for each value and output.
effect_frame <- function(record) {
  effects <- as.matrix(record$effects)
  cbind(effect_places(record, ncol(effects)), effect = as.vector(effects), rows = rep(
    as.numeric(record$counts), ncol(effects)
  ))
}

effect_places <- function(record, outputs) {
  levels <- as_chr(record$levels)
  values <- if (length(levels) > 0) seq_along(levels) else as.numeric(record$values)
  data.frame(
    column = record$column, output = rep(as_chr(record$outputs), each = length(values)),
    value = rep(as.numeric(values), outputs),
    level = rep(if (length(levels) > 0) levels else NA_character_, length.out = length(values))
  )
}

# The curves of single rows; `individual` has the axes row, value and output.
individual_frame <- function(record, rows) {
  curves <- record$individual
  if (is.null(curves)) {
    return(NULL)
  }
  places <- effect_places(record, dim(curves)[3])
  count <- nrow(places)
  cbind(
    row = rep(rows, each = count), places[rep(seq_len(count), length(rows)), ],
    effect = as.vector(aperm(curves, c(2, 3, 1))), row.names = NULL
  )
}

#' @rdname gpu_effects
#' @param x,object A `gpu_effects`.
#' @param most How many rows of each curve to show.
#' @param ... Not used.
#' @export
format.gpu_effects <- function(x, most = 6, ...) {
  ale <- identical(attr(x, "kind"), "ale")
  name <- if (ale) "accumulated local effects" else "partial dependence"
  curves <- split_curves(x)
  lines <- lapply(curves, function(curve) {
    shown <- curve[unique(round(seq(1, nrow(curve), length.out = min(most, nrow(curve))))), ]
    at <- ifelse(is.na(shown$level), format_number(shown$value, 3), shown$level)
    pairs <- paste0(at, ": ", format_number(shown$effect, 3), collapse = "  ")
    sprintf("  %s%s  %s", curve$column[1], name_output(curve, x), pairs)
  })
  c(
    sprintf(
      "<gpu_effects> %s of %s%s", name, count_of(attr(x, "sample"), "rows"),
      if (isTRUE(attr(x, "weighted"))) ", weighted" else ""
    ),
    unlist(lines, use.names = FALSE)
  )
}

name_output <- function(curve, x) {
  if (length(unique(x$output)) > 1) sprintf(" (%s)", curve$output[1]) else ""
}

# A data frame for each column and output, in their order.
split_curves <- function(x) {
  frame <- as.data.frame(x)
  keys <- paste(frame$column, frame$output, sep = "\r")
  unname(split(frame, factor(keys, unique(keys))))
}

#' @rdname gpu_effects
#' @param row.names,optional Not used.
#' @export
as.data.frame.gpu_effects <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  fields <- c("column", "output", "value", "level", "effect", "rows")
  structure(
    stats::setNames(lapply(fields, function(field) x[[field]]), fields),
    class = "data.frame", row.names = seq_along(x$column)
  )
}

#' @rdname gpu_effects
#' @export
plot.gpu_effects <- function(x, ...) {
  columns <- unique(x$column)
  before <- graphics::par(
    mfrow = grDevices::n2mfrow(min(length(columns), panels_a_page)), mar = c(4, 4, 1, 1)
  )
  on.exit(graphics::par(before))
  own <- attr(x, "individual")
  for (column in columns) {
    rows <- if (!is.null(own)) own[own$column == column, ]
    draw_effect(as.data.frame(x)[x$column == column, ], rows, column)
  }
  invisible(x)
}

# The curves of a column, one for each output, over those of single rows, if there are any.
draw_effect <- function(frame, own, column) {
  outputs <- unique(frame$output)
  limits <- range(frame$effect, own$effect)
  graphics::plot(
    range(frame$value), if (length(outputs) > 1) leave_room(limits, length(outputs)) else limits,
    type = "n", xlab = column, ylab = "prediction", xaxt = if (anyNA(frame$level)) "s" else "n"
  )
  if (!anyNA(frame$level)) graphics::axis(1, unique(frame$value), unique(frame$level))
  curves <- if (!is.null(own)) split(own, list(own$row, own$output), drop = TRUE)
  for (curve in curves) graphics::lines(curve$value, curve$effect, col = "grey80")
  for (place in seq_along(outputs)) {
    curve <- frame[frame$output == outputs[place], ]
    graphics::lines(curve$value, curve$effect, col = place, lwd = 2, type = "o", pch = 20)
  }
  if (length(outputs) > 1) {
    graphics::legend("topright", outputs, col = seq_along(outputs), lwd = 2, bty = "n")
  }
}

#' @rdname gpu_effects
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_effects <- function(object, ...) { # nolint: object_name_linter.
  frame <- as.data.frame(object)
  own <- attr(object, "individual")
  drawn <- ggplot2::ggplot(frame, ggplot2::aes(.data$value, .data$effect, colour = .data$output))
  if (!is.null(own)) {
    groups <- ggplot2::aes(group = interaction(.data$row, .data$output))
    drawn <- drawn + ggplot2::geom_line(groups, own, colour = "grey80")
  }
  named <- frame[!is.na(frame$level), ]
  named <- named[!duplicated(named[c("column", "level")]), ]
  drawn +
    ggplot2::geom_line() +
    ggplot2::geom_point(size = 0.8) +
    ggplot2::geom_text(
      ggplot2::aes(y = -Inf, label = .data$level), named,
      colour = "grey30", size = 3, vjust = -0.5
    ) +
    (if (length(unique(frame$output)) == 1) ggplot2::guides(colour = "none")) +
    ggplot2::facet_wrap("column", scales = "free_x") +
    ggplot2::labs(x = NULL, y = "prediction", colour = NULL)
}
