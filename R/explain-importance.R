# gpu_importance(): how much the loss rises when a column is permuted.

#' Importance of columns
#'
#' Permutes a column of the rows and computes by how much the model's loss rises: what the model
#' has learned from the column is then lost. All columns get the same permutations, and the rows of
#' many permutations are predicted in one call, which is much faster than a loop over
#' [gpu_predict()]. Rows are encoded once, and the numbers of a factor are permuted together.
#'
#' Importance is that for this model, not that of the column: of two columns that say the same, a
#' model may use one. Permute correlated columns together, as `groups`. Rows that did not train the
#' model (`part = "validation"`, or others) tell what helps to predict; rows that did also count
#' what was learned by heart.
#'
#' @inheritParams gpu_evaluate
#' @param data A [gpu_dataset()]; or a data frame, matrix, array or paths of files, which is encoded
#'   like the training data, with labels as for [gpu_evaluate()]. Rows that come in sequence, from
#'   functions and `tf.data` pipelines, cannot be permuted.
#' @param columns Names of columns to permute one by one; columns of a matrix without names are
#'   `"1"`, `"2"` and so on, later ones of one name `"u.1"`, those of several inputs
#'   `"input$column"`. `NULL` takes all that are in no group. With a formula they are the formula's
#'   terms, such as `"log(x)"`.
#' @param groups A named list of columns that are permuted together:
#'   `list(size = c("x", "y", "z"))`.
#' @param metric `"loss"`, or the name of a metric that the model was compiled with, as
#'   [gpu_evaluate()] returns it. One of your own says by its name whether higher values are
#'   better, such as `"my_accuracy"`.
#' @param repeats Number of permutations.
#' @param seed Seed of the permutations, so that the result is the same each time.
#' @param verbose Whether a call of more than two seconds shows a progress bar, where R's output is
#'   a terminal. An interrupt ends the call.
#' @return A `gpu_importance`: a data frame with a row for each column or group, the most important
#'   first: `column`, `importance` (the mean rise of the loss; for a metric that is better when
#'   higher, such as accuracy, its fall), `sd`, `lower` and `upper` (its standard deviation, 5% and
#'   95% quantiles over the permutations). The attributes `baseline`, `metric`, `rows`, `repeats`
#'   and `scores` (a matrix of the metric after each permutation) tell more; `plot()` and
#'   `ggplot2::autoplot()` draw it.
#' @references Breiman, L. (2001). Random forests. *Machine Learning* 45.
#'   \doi{10.1023/A:1010933404324}
#'
#'   Fisher, A., Rudin, C. and Dominici, F. (2019). All models are wrong, but many are useful.
#'   *Journal of Machine Learning Research* 20(177).
#' @section Errors:
#' `gpukeras_error_spec` for an unknown column or metric, or a group with the name of a column that
#' is permuted alone; `gpukeras_error_data` for rows without labels or columns, such as images, or
#' in sequence; `gpukeras_error_model` for a model that is not compiled, does not fit the rows, or
#' whose score is not finite, or not known from its predictions: with a `test_step()` or
#' `predict_step()` of its own, with layers that add to its loss, such as by a penalty of their
#' outputs, or with masks.
#' @seealso [gpu_effects()] for how a column acts, [gpu_attributions()] for single predictions.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 20, verbose = FALSE)
#' importance <- gpu_importance(model, mtcars, groups = list(size = c("disp", "wt")))
#' importance
#' plot(importance)
#' @export
gpu_importance <- function(model, data, y = NULL, columns = NULL, groups = NULL, metric = "loss",
                           repeats = 10, part = "all", seed = 1, recipe = NULL,
                           verbose = TRUE) {
  model <- check_model(model)
  check_string(metric)
  check_no_na_options(list(columns = columns, repeats = repeats, seed = seed))
  groups <- check_options(groups, "groups", "a named list of columns")
  recipe <- use_recipe(model, recipe)
  data <- as_dataset(data, model, recipe, y, model = model, verbose = verbose)
  record <- call_core("importance", list(
    model = model, data = data$handle, columns = as_names(columns),
    groups = lapply(groups, as_names), metric = metric, repeats = repeats, part = part, seed = seed,
    on_event = call_listener(verbose, "permuting", "permutations")
  ))
  warn_unweighed(record$unweighed)
  new_gpu_importance(record)
}

new_gpu_importance <- function(record) {
  scores <- do.call(rbind, lapply(record$scores, as.numeric))
  rownames(scores) <- as_chr(record$columns)
  rise <- (scores - record$baseline) * if (identical(record$mode, "max")) -1 else 1
  frame <- data.frame(
    column = rownames(scores), importance = rowMeans(rise),
    sd = apply(rise, 1, stats::sd), lower = apply(rise, 1, stats::quantile, 0.05),
    upper = apply(rise, 1, stats::quantile, 0.95)
  )
  frame <- frame[order(-frame$importance), ]
  rownames(frame) <- NULL
  about <- c("metric", "mode", "baseline", "rows")
  attributes(frame)[about] <- record[about]
  attr(frame, "repeats") <- ncol(scores)
  attr(frame, "scores") <- scores[frame$column, , drop = FALSE]
  new_result_frame(frame, "gpu_importance")
}

#' @rdname gpu_importance
#' @param x,object A `gpu_importance`.
#' @param most How many columns to show.
#' @param ... Not used.
#' @export
format.gpu_importance <- function(x, most = 20, ...) {
  shown <- utils::head(as.data.frame(x), most)
  number <- function(values) format(values, digits = 3)
  cells <- list(
    column = shown$column, importance = number(shown$importance), sd = number(shown$sd),
    "5%" = number(shown$lower), "95%" = number(shown$upper)
  )
  c(
    sprintf(
      "<gpu_importance> %s of the %s from %s, %s of %s",
      if (identical(attr(x, "mode"), "max")) "fall" else "rise", attr(x, "metric"),
      format_number(attr(x, "baseline")), count_of(attr(x, "repeats"), "permutations"),
      count_of(attr(x, "rows"), "rows")
    ),
    format_columns(cells, c("left", rep("right", 4))),
    format_more(nrow(x) - nrow(shown), "as.data.frame()")
  )
}

#' @rdname gpu_importance
#' @param row.names,optional Not used.
#' @export
as.data.frame.gpu_importance <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  structure(
    list(
      column = x$column, importance = x$importance, sd = x$sd, lower = x$lower, upper = x$upper
    ),
    class = "data.frame", row.names = seq_along(x$column)
  )
}

#' @rdname gpu_importance
#' @export
plot.gpu_importance <- function(x, most = 20, ...) {
  shown <- utils::head(as.data.frame(x), most)
  shown <- shown[rev(seq_len(nrow(shown))), ]
  draw_bars(shown$importance, shown$column, importance_label(x), shown[c("lower", "upper")])
  invisible(x)
}

importance_label <- function(x) {
  direction <- if (identical(attr(x, "mode"), "max")) "fall" else "rise"
  sprintf("%s of the %s (line: 5%% to 95%% of permutations)", direction, attr(x, "metric"))
}

# Horizontal bars with their names, and lines from the first to the second column of `spans`.
draw_bars <- function(values, names, label, spans = NULL) {
  before <- graphics::par("mai")
  on.exit(graphics::par(mai = before)) # later drawing would use other coordinates
  wide <- max(graphics::strwidth(names, "inches"), 0) + 0.3
  graphics::par(mai = c(0.8, wide, 0.2, 0.2))
  graphics::barplot(
    values,
    horiz = TRUE, names.arg = names, las = 1, col = "#0072B2", border = NA, xlab = label,
    xlim = range(0, values, unlist(spans))
  )
  if (!is.null(spans)) {
    places <- bar_places(names)
    graphics::segments(spans[[1]], places, spans[[2]], places, lwd = 2)
  }
}

#' @rdname gpu_importance
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_importance <- function(object, most = 20, ...) { # nolint: object_name_linter.
  shown <- utils::head(as.data.frame(object), most)
  shown$column <- factor(shown$column, rev(shown$column))
  ggplot2::ggplot(shown, ggplot2::aes(.data$importance, .data$column)) +
    ggplot2::geom_col(fill = "#0072B2") +
    ggplot2::geom_linerange(ggplot2::aes(xmin = .data$lower, xmax = .data$upper)) +
    ggplot2::labs(x = importance_label(object), y = NULL)
}
