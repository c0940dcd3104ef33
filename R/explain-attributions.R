# gpu_attributions(): what each input adds to a prediction.

#' Attributions: what each column or pixel adds to a prediction
#'
#' Integrated gradients (Sundararajan, Taly and Yan 2017): the gradient of the model's output with
#' respect to its inputs is integrated along the straight line from a baseline to the row, and
#' multiplied by their difference. The attributions of a row add up to the difference between its
#' output and that of the baseline; `$gap` tells how far they miss it.
#'
#' Inputs that are looked up, such as the codes of an embedding, and texts have no gradient. Outputs
#' are those of the model itself, without the temperature of [gpu_calibrate()].
#' @inheritParams gpu_predict
#' @inheritParams gpu_importance
#' @param newdata A data frame, matrix (also a sparse one), array or paths of files; a named list of
#'   inputs, if training had one; or a [gpu_dataset()]. Rows that come in sequence are refused.
#' @param baseline One row, given as `newdata` is. `NULL` is a row of encoded zeros: the mean of
#'   numbers that gpukeras standardised, no level of a factor, a black image; and the mean
#'   `offset()` of the training rows.
#' @param steps Points of the path at which gradients are computed (Gauss-Legendre quadrature), at
#'   most 1000.
#' @param class Name of the class or output to explain; outputs without names are `"1"`, `"2"` and
#'   so on. `NULL` is the most probable class of each row, the second one if the model has one
#'   output for two classes, or the only output.
#' @return A `gpu_attributions`: `$values`, a matrix with one row for each row of `newdata` and a
#'   column for each of its columns (summed over the numbers of a factor), or for images and arrays
#'   an array of their shape, rows first; `$output` and `$baseline` (outputs of rows and baseline),
#'   `$class` (explained for each row), `$gap` and `$notes`. `NA` in rows with a missing value that
#'   training left out. `as.data.frame()` gives the matrix; `plot()` draws the mean absolute
#'   attribution of each column, or the attributions of an image.
#' @references Sundararajan, M., Taly, A. and Yan, Q. (2017). Axiomatic attribution for deep
#'   networks. *ICML*. \doi{10.48550/arXiv.1703.01365}
#' @section Errors:
#' `gpukeras_error_spec` for an unknown class, or if `class` is needed; `gpukeras_error_data` for
#' texts, rows in sequence, or a baseline that is not one row, or one that training would leave out
#' for a missing value; `gpukeras_error_model` for a model with several outputs, one that does not
#' fit the rows, or one whose outputs for a row depend on other rows, of its batch or by a state
#' that it keeps.
#' @seealso [gpu_importance()] and [gpu_effects()] for what holds for all rows.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 20, verbose = FALSE)
#' why <- gpu_attributions(model, mtcars[1:5, ])
#' why
#' rowSums(why$values) - (why$output - why$baseline)
#' @export
gpu_attributions <- function(model, newdata, baseline = NULL, steps = 50, class = NULL,
                             recipe = NULL, verbose = TRUE) {
  model <- check_model(model)
  check_no_na_options(list(steps = steps, class = class))
  recipe <- use_recipe(model, recipe)
  rows <- as_new_data(newdata, model, recipe)
  if (!is.null(baseline)) baseline <- as_new_features(baseline, recipe, arg = "baseline")
  new_gpu_attributions(call_core("attribute", list(
    model = model, features = rows$features, data = rows$data, baseline = baseline, steps = steps,
    output = as_output_name(class),
    on_event = call_listener(verbose, "explaining", "rows")
  )))
}

new_gpu_attributions <- function(record) {
  values <- name_columns(record$values, as_chr(record$columns))
  missing <- as.integer(record$missing)
  values[slice.index(values, 1) %in% missing] <- NA
  outputs <- lapply(record[c("outputs", "baselines", "classes")], function(each) {
    replace(as.vector(unlist(each)), missing, NA)
  })
  new_result(
    list(
      values = values, output = outputs$outputs, baseline = outputs$baselines,
      class = as.character(outputs$classes), gap = record$gap, notes = as_chr(record$notes)
    ),
    "gpu_attributions"
  )
}

#' @rdname gpu_attributions
#' @param x A `gpu_attributions`.
#' @param row.names,optional Not used.
#' @param ... Not used.
#' @export
as.data.frame.gpu_attributions <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  as.data.frame(require_columns(x)$values)
}

as_output_name <- function(class, call = caller_env()) {
  if (is.null(class)) {
    return(NULL)
  }
  if (!rlang::is_scalar_atomic(class)) {
    abort_spec(class, "class", "the name of a class or output", call)
  }
  as.character(class)
}

# Refuses attributions of images and arrays.
require_columns <- function(x, call = caller_env()) {
  if (length(dim(x$values)) != 2) {
    abort_gpukeras(
      "Attributions of images and arrays have no columns.",
      code = "data", hint = "`$values` is their array.", arg = "x", call = call
    )
  }
  x
}

#' @rdname gpu_attributions
#' @param most How many columns to show, the largest first.
#' @export
format.gpu_attributions <- function(x, most = 10, ...) {
  size <- dim(x$values)
  rows <- sprintf(
    "<gpu_attributions> %s, sums miss outputs by at most %s", count_of(size[1], "rows"),
    format_number(x$gap, 2)
  )
  if (length(size) != 2) {
    return(c(rows, paste("values:   an array of", format_shape(size))))
  }
  sizes <- mean_sizes(x)
  shown <- utils::head(sizes, most)
  cells <- list(column = names(shown), "mean |attribution|" = format(unname(shown), digits = 3))
  c(
    rows, format_columns(cells, c("left", "right")),
    format_more(length(sizes) - length(shown), "colMeans(abs(x$values))"),
    wrap_lines(x$notes, "note:     ")
  )
}

# The mean size of each column's attributions, the largest first.
mean_sizes <- function(x) sort(colMeans(abs(x$values), na.rm = TRUE), decreasing = TRUE)

#' @rdname gpu_attributions
#' @param row Number of the row whose image is drawn, summed over its channels.
#' @export
plot.gpu_attributions <- function(x, most = 20, row = 1, ...) {
  if (length(dim(x$values)) == 2) {
    shown <- rev(utils::head(mean_sizes(x), most))
    draw_bars(unname(shown), names(shown), "mean |attribution|")
  } else {
    draw_attributions(x$values, row, ...)
  }
  invisible(x)
}

# The attributions of an image: what is blue adds to the output, what is red takes from it.
draw_attributions <- function(values, row, ...) {
  picture <- apply(array(values[slice.index(values, 1) == row], dim(values)[-1]), 1:2, sum)
  most <- max(abs(picture), 1e-12)
  graphics::image(
    t(picture[rev(seq_len(nrow(picture))), , drop = FALSE]),
    zlim = c(-most, most), axes = FALSE, asp = nrow(picture) / ncol(picture),
    col = grDevices::hcl.colors(51, "Blue-Red 3", rev = TRUE), ...
  )
}
