# The parameters, FLOPs and memory of a model, before it is trained.

#' Parameters, FLOPs, activations and memory of a model by layer
#'
#' Counts, for each layer, the parameters, the floating point operations (FLOPs) of a prediction,
#' and the bytes that training keeps for each row until the gradients are computed. Estimates the
#' memory of a training for a batch size, and the largest batch that fits the device. Suggests where
#' another kind of layer would be much cheaper. The model does not run and needs no data: this takes
#' some tenths of a second, or several seconds for a model of hundreds of layers.
#'
#' With `card`, or where a GPU is, it reckons what the training would be on that card: see below.
#'
#' @section How FLOPs are counted:
#' A multiplication and the addition after it count as two. A dense layer with `c` inputs takes `2 c
#' units`; a convolution `2 k c filters` for each output position (`k`: the size of its window); an
#' LSTM `8 units (c + units)` for each step; multi-head attention takes four projections and `2
#' (key_dim + value_dim)` for each head and pair of positions. A bias, a function such as relu or
#' tanh, and each product of the gates take one per number, a softmax five. Keras' own layers are
#' counted by such formulas; other layers (custom ones, lambda layers) by their operations in
#' TensorFlow or JAX. If a layer cannot be counted, its value is `NA`, never 0, and the totals say
#' so.
#'
#' A training step takes about three times the forward pass, because the backward pass computes two
#' products for each product of the forward pass. Time need not follow FLOPs: [gpu_batch_size()]
#' shows the device's own limits.
#'
#' @section How memory is estimated:
#' The estimate adds up the weights, their gradients, the optimizer's state (Adam: two numbers per
#' weight), and for each row of the batch: inputs, outputs, kept activations and twice the largest
#' of them. Kept activations are the tensors that the gradients read, as TensorFlow or JAX traces
#' them for this model, in the model's precision. In trials on a CPU, training took 0.8 to 1.2 times
#' the estimate, and with LSTM layers 1.6 times. The estimate excludes what libraries take for
#' themselves (the CUDA context, cuDNN's workspaces), and XLA may keep less. [gpu_batch_size()]
#' measures it.
#'
#' @section On a card that need not be here:
#' `gpu_cost(model, data, card = "A100")` says whether the training fits that card, and what bounds
#' its steps. Nothing of it was measured. Each figure has a `basis`:
#'
#' * `"compiled"`: XLA compiled the loop that [gpu_fit()] runs on JAX, for this card. It needs no
#'   GPU, but packages that `install_gpukeras(cards = TRUE)` adds in an environment of their own
#'   (`GPUKERAS_CARDS_PYTHON` names the Python of another one). A small model takes some 15 seconds,
#'   a residual network a minute. TensorFlow's loop is compiled by another version of XLA and
#'   differs a little. Autotuning needs the card, so the number of kernels can differ by some.
#' * `"computed"`: from the model, the rows and the card's data sheet.
#' * `"assumed"`: from a source that the figure names.
#'
#' Without those packages, without `data`, or if the model has functions or classes of your own, no
#' figure is compiled: then the memory is the estimate below, kernels and launches are not known,
#' and a note says why.
#'
#' *Fits* compares the card's memory with the sum of rows that stay on the card, the rows that calls
#' take, weights with the optimizer's state, all else that the program needs, and 500 MiB for
#' CUDA's libraries. These take more, so the sum is a lower bound: what does not fit by it does not
#' fit, and what nearly fits may not. JAX takes 75 % of a card's memory at most, or the share that
#' `XLA_PYTHON_CLIENT_MEM_FRACTION` sets; where Keras runs on it, that counts too.
#'
#' *Least times* of a step are three: gaps between kernels (`launches_s`), the model's FLOPs at the
#' card's peak (`arithmetic_s`), and weights and optimizer state read and written once at the card's
#' bandwidth (`memory_s`). A real step takes longer than each of them; `bound` names the longest.
#' The `knee` is the batch size, a power of two, from which arithmetic takes as long as the other
#' two together: a smaller batch hardly makes a step shorter.
#'
#' *Precision* is what [gpu_setup()] would choose on that card. The program is compiled in the
#' model's own: use `gpu_setup(precision = )` before you build the model to see another one.
#'
#' @param model A Keras 3 model. It need not be compiled, but then no optimizer is counted. A model
#'   without weights is built, as its first batch would do.
#' @param data A [gpu_dataset()] to train on, or `NULL`: its rows count on a card, and its batch
#'   size is the default.
#' @param card A card by name, such as `"A100"`, `"RTX 3060"` or as its driver names it: one of 36
#'   from GTX 1060 to B200, which an error lists. `NULL` is the card that the model is on, if any.
#' @param batch_size Rows of a batch, for the memory: a number or a [gpu_batch_size()]; `NULL` is
#'   that of `data`, or 32, Keras' own default.
#' @param input_shape Shape of a row, such as `c(100, 8)`: for models that leave a dimension open or
#'   do not define their input shape. For several inputs, a list of shapes, by the inputs' names or
#'   in their order.
#' @param memory MiB to compare with, such as `8 * 1024` for a card of 8 GiB; `NULL` is the memory
#'   of `card`, or of the device that holds the model's weights.
#' @return A `gpu_cost` with `$layers` (also `as.data.frame()`: one row per layer with `name`,
#'   `kind`, `output_shape`, `params`, `trainable_params`, `flops` per row, `flops_share`,
#'   `activation_bytes` per row, `calls`, `counted_by`), `$params`, `$trainable_params`, `$flops`
#'   (per row, forward), `$flops_known` (whether that includes all layers), `$step_flops` (of a
#'   training step), `$activation_bytes`, `$memory` (a list: `weights_bytes`, `gradients_bytes`,
#'   `optimizer_bytes`, `copies_bytes`, `row_bytes`, `batch_size`, `total_bytes`, `device`,
#'   `device_bytes`, `available_bytes`, `largest_batch`; `NULL` if not known), `$suggestions` (a
#'   data frame: `id`, `layers`, `text`, `flops_share` and `params_share` saved, `bytes_saved`),
#'   `$notes` and `$card` (`NULL` without a card; else a list: `card`, `fits`, `bound`, `precision`,
#'   `precision_reason`, `notes`, `install`, and `figures`, a data frame of `name`, `value`,
#'   `basis` and `source`). It has `print()`, `plot()` and `ggplot2::autoplot()`, which show the
#'   layers with the largest shares.
#' @references Howard, A. G. et al. (2017). MobileNets: efficient convolutional neural networks for
#'   mobile vision applications. *arXiv* 1704.04861. \doi{10.48550/arXiv.1704.04861}
#' @section Errors:
#' `gpukeras_error_spec` for options that do not fit the model and cards that are not listed,
#' `gpukeras_error_data` if `data` does not fit the model, `gpukeras_error_model` if the model
#' has no input shape and you give none, or if it cannot be called.
#' @seealso [gpu_batch_size()] measures the largest batch that fits.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' cost <- gpu_cost(gpu_mlp(train, units = c(64, 32)), batch_size = 512)
#' cost
#' plot(cost)
#' cost$memory$largest_batch
#' gpu_cost(gpu_mlp(train, units = c(64, 32)), train, card = "RTX 3060")$card
#' @export
gpu_cost <- function(model, data = NULL, card = NULL, batch_size = NULL, input_shape = NULL,
                     memory = NULL) {
  model <- check_model(model)
  if (!is.null(card)) check_string(card)
  args <- list(
    model = model, data = if (!is.null(data)) as_training(data)$handle,
    batch_size = as_batch_size(batch_size), input_shape = as_input_shape(input_shape),
    memory = memory, card = card, compiler = cards_python()
  )
  check_no_na_options(args[-(1:2)])
  new_gpu_cost(call_core("model_cost", args))
}

# A vector is one shape, a list several; in Python both would be a list of numbers.
as_input_shape <- function(shape, call = caller_env()) {
  placed <- function(sizes) as.list(as_placed(sizes, character(), "input_shape", call))
  if (is.list(shape)) lapply(shape, placed) else if (!is.null(shape)) placed(shape)
}

new_gpu_cost <- function(record) {
  columns <- c(
    "name", "kind", "output_shape", "params", "trainable_params", "flops", "flops_share",
    "activation_bytes", "calls", "counted_by"
  )
  layers <- lapply(record$layers, function(layer) {
    layer$output_shape <- format_shape(layer$output_shape)
    layer$flops_share <- if (!is.null(layer$flops)) layer$flops / max(record$flops, 1)
    layer
  })
  record$layers <- numeric_columns(
    records_frame(layers, columns), c("params", "trainable_params", "flops", "activation_bytes")
  )
  fields <- c("id", "layers", "text", "flops_share", "params_share", "bytes_saved")
  suggestions <- lapply(record$suggestions, function(each) {
    each$layers <- paste(unlist(each$layers), collapse = ", ")
    each
  })
  record$suggestions <- numeric_columns(records_frame(suggestions, fields), "bytes_saved")
  if (!is.null(record$card)) record$card <- as_card_cost(record$card)
  new_result(record, "gpu_cost")
}

as_card_cost <- function(card) {
  columns <- c("name", "value", "basis", "source")
  card$figures <- numeric_columns(records_frame(card$figures, columns), "value")
  card$notes <- as_chr(card$notes)
  card
}

#' @rdname gpu_cost
#' @param x,object A `gpu_cost`.
#' @param row.names,optional Not used.
#' @param ... Not used.
#' @export
as.data.frame.gpu_cost <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  x$layers
}

# Print --------------------------------------------------------------------------------------------

#' @rdname gpu_cost
#' @param most How many layers to show: those with the largest shares, in the model's order.
#' @export
format.gpu_cost <- function(x, most = 15, ...) {
  head <- sprintf(
    "<gpu_cost> %s: %s parameters, %s%s a row", x$name, format_count(x$params),
    if (x$flops_known) "" else "more than ", format_si(x$flops, "FLOPs")
  )
  rest <- x$trainable_params < x$params
  format_fields(
    head,
    trained = if (rest) paste(format_count(x$trainable_params), "of the parameters"),
    if (nrow(x$layers) > 0) format_costs(x$layers, most),
    step = if (!is.null(x$step_flops)) {
      sprintf(
        "about %s for %s, three times the forward pass",
        format_si(x$step_flops, "FLOPs"), count_of(x$memory$batch_size, "rows")
      )
    },
    format_need(x$memory),
    if (!is.null(x$card)) format_card_cost(x$card),
    wrap_lines(x$suggestions$text, "advice:   "),
    wrap_lines(x$notes, "note:     ")
  )
}

format_costs <- function(layers, most) {
  shown <- largest_layers(layers, most)
  share <- ifelse(is.na(shown$flops_share), "", format_percent(shown$flops_share))
  cells <- list(
    layer = ifelse(shown$calls > 1, sprintf("%s (%d times)", shown$name, shown$calls), shown$name),
    kind = shown$kind, output = shown$output_shape, params = format_count(shown$params),
    FLOPs = format_si(shown$flops), share = share,
    "kept a row" = format_bytes(shown$activation_bytes)
  )
  c(
    format_columns(cells, rep(c("left", "right"), c(3, 4))),
    format_more(nrow(layers) - nrow(shown), "as.data.frame()")
  )
}

# The layers with the largest share of anything, in the model's order.
largest_layers <- function(layers, most) {
  part <- function(values) {
    values[is.na(values)] <- 0
    values / max(sum(values), 1)
  }
  size <- pmax(part(layers$flops), part(layers$params), part(layers$activation_bytes))
  size[is.na(layers$flops)] <- Inf # layers without a known cost are always shown
  layers[sort(utils::head(order(-size), most)), ]
}

format_need <- function(memory) {
  known <- !is.null(memory$total_bytes)
  parts <- sprintf(
    "%s weights, %s gradients, %s optimizer, %s a row", format_bytes(memory$weights_bytes),
    format_bytes(memory$gradients_bytes), format_bytes(memory$optimizer_bytes),
    format_bytes(memory$row_bytes)
  )
  total <- if (known) paste("about", format_bytes(memory$total_bytes)) else "an unknown amount"
  c(
    sprintf("memory:   %s to train with batches of %s", total, count_of(memory$batch_size, "rows")),
    sprintf("          (%s)", parts),
    format_fit(memory)
  )
}

format_fit <- function(memory) {
  if (is.null(memory$available_bytes)) {
    return(NULL)
  }
  place <- if (nzchar(memory$device)) {
    sprintf(
      "%s has %s, %s of it free for this", memory$device, format_bytes(memory$device_bytes),
      format_bytes(memory$available_bytes)
    )
  } else {
    paste("of", format_bytes(memory$available_bytes))
  }
  fits <- if (is.null(memory$largest_batch)) {
    ""
  } else if (memory$largest_batch < 1) {
    ": not a single row fits"
  } else {
    sprintf(": up to about %s fit", count_of(signif(memory$largest_batch, 2), "rows"))
  }
  sprintf("device:   %s%s", place, fits)
}

# On a card ----------------------------------------------------------------------------------------

format_card_cost <- function(card) {
  c(
    wrap_line(paste0(card$card, ": ", describe_fit(card)), "card:     "),
    wrap_lines(describe_step(card), "          "),
    wrap_line(
      sprintf("%s suits it: %s.", card$precision, card$precision_reason), "          "
    ),
    format_card_figures(card$figures),
    "          Nothing of it was measured.",
    wrap_lines(card$notes, "          "),
    if (card$install) "          install_gpukeras(cards = TRUE) adds them."
  )
}

describe_fit <- function(card) {
  if (is.null(card$fits)) {
    return("whether it fits is not known.")
  }
  sprintf(
    "%s, with at least %s of %s.", if (card$fits) "fits" else "does not fit",
    format_bytes(figure_of(card, "total_bytes")), format_bytes(figure_of(card, "card_bytes"))
  )
}

describe_step <- function(card) {
  knee <- figure_of(card, "knee")
  bound <- c(launches = "launches", arithmetic = "arithmetic", memory = "weights")
  c(
    if (nzchar(card$bound)) {
      sprintf("Of a step's least times, that for %s is the longest.", bound[[card$bound]])
    },
    if (!is.na(knee)) {
      sprintf("From batches of %s on, it is arithmetic's.", count_of(knee, "rows"))
    }
  )
}

figure_of <- function(card, name) card$figures$value[match(name, card$figures$name)]

format_card_figures <- function(figures) {
  units <- sub("^.*_(bytes|s)$", "\\1", figures$name)
  value <- ifelse(
    units == "bytes", format_bytes(figures$value),
    ifelse(units == "s", format_least(figures$value), format_count(round(figures$value)))
  )
  known <- !is.na(figures$value)
  format_columns(
    list(
      figure = card_labels[figures$name], value = ifelse(known, value, "?"),
      basis = ifelse(known, figures$basis, "not known"), from = figures$source
    ),
    c("left", "right", "left", "left")
  )
}

format_least <- function(seconds) {
  ifelse(!is.na(seconds) & seconds < 1e-9, "<0.001 us", format_time(seconds))
}

card_labels <- c(
  rows_bytes = "rows that stay", block_bytes = "rows of a call",
  state_bytes = "weights, optimizer", temporary_bytes = "gradients and such",
  libraries_bytes = "libraries", total_bytes = "all of these", card_bytes = "the card's memory",
  kernels = "kernels a step", launches = "launches a step", launches_s = "least for launches",
  arithmetic_s = "least for arithmetic", memory_s = "least for weights",
  knee = "knee, rows a batch"
)

# Plots --------------------------------------------------------------------------------------------

#' @rdname gpu_cost
#' @export
plot.gpu_cost <- function(x, most = 15, ...) {
  shares <- drawn_costs(x, most)
  names <- levels(shares$layer)
  before <- graphics::par(c("mai", "cex"))
  on.exit({
    graphics::layout(1)
    graphics::par(before)
  })
  wide <- max(graphics::strwidth(names, "inches")) + 0.25
  sides <- c(0.2, 0.25) # inches left and right of the bars
  panel <- max(0.8, (grDevices::dev.size()[1] - wide + sides[1]) / 3)
  graphics::layout(matrix(1:3, 1), widths = c(wide + panel - sides[1], panel, panel))
  for (measure in levels(shares$measure)) {
    first <- measure == levels(shares$measure)[1]
    graphics::par(mai = c(0.95, if (first) wide else sides[1], 0.1, sides[2]), cex = 1)
    rows <- shares[shares$measure == measure, ]
    draw_costs(rows[order(rows$layer), ], measure, share_limits(shares))
    if (first) graphics::axis(2, bar_places(names), names, las = 1, tick = FALSE, line = -0.6)
  }
  invisible(x)
}

# Bars of one measure, the first layer on top; "?" if it is not known.
draw_costs <- function(rows, measure, limits) {
  known <- !is.na(rows$share)
  graphics::barplot(
    ifelse(known, 100 * rows$share, 0),
    horiz = TRUE, col = cost_colours[[as.character(rows$kind[1])]], border = NA, axes = FALSE,
    xlim = limits
  )
  graphics::axis(1, pretty(limits, 2))
  graphics::abline(v = 0, col = "grey60")
  graphics::mtext(measure, 1, line = 3.6, cex = 0.9)
  if (!all(known)) graphics::text(0, bar_places(rows$layer)[!known], "?", pos = 4)
}

# Where barplot() puts the middles of its bars.
bar_places <- function(bars) 1.2 * seq_along(bars) - 0.5

# The same for all measures, so that their bars can be compared.
share_limits <- function(shares) range(pretty(c(0, 100 * max(shares$share, 0, na.rm = TRUE))))

#' @rdname gpu_cost
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_cost <- function(object, most = 15, ...) { # nolint: object_name_linter.
  shares <- drawn_costs(object, most)
  shares <- shares[!is.na(shares$share), ]
  ggplot2::ggplot(shares, ggplot2::aes(100 * .data$share, .data$layer, fill = .data$kind)) +
    ggplot2::geom_col(show.legend = FALSE) +
    ggplot2::facet_wrap("measure", strip.position = "bottom") +
    ggplot2::scale_fill_manual(values = cost_colours) +
    ggplot2::coord_cartesian(xlim = share_limits(shares)) +
    ggplot2::labs(x = NULL, y = NULL) +
    ggplot2::theme(strip.placement = "outside", strip.background = ggplot2::element_blank())
}

# The colours of Okabe and Ito, which colour-blind people can distinguish.
cost_colours <- c(FLOPs = "#0072B2", parameters = "#E69F00", "kept activations" = "#009E73")

# A row for each layer and measure; the first layer is the last level, as bars begin below.
drawn_costs <- function(x, most, call = caller_env()) {
  if (nrow(x$layers) == 0) {
    abort_gpukeras("The model has no layer to plot.", code = "data", arg = "x", call = call)
  }
  shown <- largest_layers(x$layers, most)
  kept <- sum(x$layers$activation_bytes, na.rm = TRUE)
  values <- list(
    FLOPs = shown$flops / max(x$flops, 1), parameters = shown$params / max(x$params, 1),
    "kept activations" = shown$activation_bytes / max(kept, 1)
  )
  sums <- c(format_si(x$flops), format_si(x$params), format_bytes(kept))
  totals <- paste0(sums, c(" a row", "", " a row"))
  partly <- c(!x$flops_known, FALSE, anyNA(x$layers$activation_bytes))
  measures <- sprintf("%s\n%% of %s%s", names(values), ifelse(partly, "the known ", ""), totals)
  data.frame(
    layer = factor(rep(shown$name, 3), rev(shown$name)),
    kind = factor(rep(names(values), each = nrow(shown)), names(values)),
    measure = factor(rep(measures, each = nrow(shown)), measures),
    share = unlist(values, use.names = FALSE)
  )
}
