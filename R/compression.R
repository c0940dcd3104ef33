# Mirrors compression/: smaller and faster models, and what they lost by it.

#' Fewer bits for the weights of a model
#'
#' Quantizes a copy of a model by Keras' own `quantize()`, and measures what was gained and lost.
#' The model given stays as it is.
#'
#' - `"int8"`: whole numbers of 8 bits with a scale for each output. Inputs of a layer are rounded
#'   too, by the largest value of each row as it comes: there is nothing to calibrate.
#' - `"int4"`: whole numbers of 4 bits, with a scale and a zero for each output and block of inputs.
#'   Inputs stay as they are.
#' - `"float8"`: weights stay in float32, on disk and in memory, and each product is computed in 8
#'   bits, on GPUs that can (NVIDIA H100 and later). Its scales are calibrated in one pass over the
#'   training rows of `data`, in which the weights stay.
#'
#' Keras can quantize dense layers (also those that attention is made of) and embeddings (not to
#' `"float8"`). What stays as it is, convolutions for one, is listed in `$listed`. Fewer bits need
#' not be faster: rounding takes time too, which on a CPU is often more than what it saves.
#'
#' @param model A Keras 3 model that has weights.
#' @param mode `"int8"`, `"int4"` or `"float8"`.
#' @param data A [gpu_dataset()] or `list(x, y)` to measure on, and for `"float8"` to calibrate on.
#'   `NULL` measures size and speed alone.
#' @param exclude Names of layers that stay as they are.
#' @param max_drop By how much the metric may get worse, in its own unit: 0.01 is one point of
#'   accuracy. If it gets worse by more, that is an error, and there is no new model. `NULL` allows
#'   everything.
#' @param metric Name of the metric that `max_drop` is about; `NULL` for the first that is not the
#'   loss. Of metrics such as accuracy or AUC more is better, of losses and errors less.
#' @param validation Rows to evaluate on, as in [gpu_fit()]; `NULL` for those that `data` kept
#'   apart, or all of its rows if it kept none.
#' @param batch_size Rows of the batch that is timed besides a single row; `NULL` for the data's
#'   own, or 32.
#' @return A [gpu_compression] with the new model in `$model`.
#' @section Errors:
#' `gpukeras_error_compression` if the metric gets worse by more than `max_drop`,
#' `gpukeras_error_model` if none of the layers can be quantized, or the model cannot be copied.
#' @seealso [gpu_distill()] and [gpu_separable()].
#' @examplesIf interactive()
#' train <- gpu_dataset(Species ~ ., data = iris, validation = 0.2)
#' model <- gpu_mlp(train, units = c(256, 256))
#' gpu_fit(model, train, epochs = 20)
#' small <- gpu_quantize(model, "int8", train, max_drop = 0.01)
#' small
#' plot(small)
#' gpu_predict(small$model, iris)
#' @export
gpu_quantize <- function(model, mode = "int8", data = NULL, exclude = NULL, max_drop = NULL,
                         metric = NULL, validation = NULL, batch_size = NULL) {
  model <- check_model(model)
  data <- as_measured(data)
  options <- list(
    mode = mode, exclude = as.list(exclude), max_drop = max_drop, metric = metric,
    batch_size = batch_size
  )
  new_gpu_compression(call_core("quantize", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_measured_on(validation, data)
  )))
}

#' A small model that learns from a large one
#'
#' Trains a student on the labels and on what its teacher says of the same rows (Hinton et al.
#' 2015): which of the wrong classes is the least wrong one is more than a label tells.
#'
#' The student's loss is `alpha` times its own loss plus `1 - alpha` times its distance from the
#' teacher. For classes that is the Kullback-Leibler divergence of both distributions, softened by
#' the temperature T and multiplied by T^2; models may end in probabilities (a softmax or a sigmoid)
#' or in logits, as their loss says. For numbers it is the student's own loss with what the teacher
#' says as labels. Weights of rows count in both parts. Losses and metrics of validation rows are
#' the student's own.
#'
#' Keras' own `keras.distillation.Distiller` is not used: it takes probabilities for logits, leaves
#' out weights of rows and regularisers, and its teacher stays frozen.
#'
#' @section When it pays:
#' Where the teacher knows more than the labels of these rows tell, and there is time. A teacher
#' that is no better than the student can be does harm, and softened classes are learned slowly
#' (Beyer et al. 2022): after a few epochs a student is often worse than one trained alone. Train
#' the same student alone for as long, and compare; `vignette("a-model-that-fits")` does.
#'
#' @section A student from its teacher:
#' Without a `student` one is made like the teacher, with `width` times the units and filters of
#' each hidden layer, and new weights. Layers whose outputs are added or multiplied stay equally
#' wide; those that meet an input, or a layer that gpukeras does not know, keep their width. That
#' works for sequential and functional teachers.
#'
#' @param teacher A trained, compiled Keras 3 model. It stays as it is.
#' @param data The [gpu_dataset()] to learn from, encoded as the teacher's (`recipe = teacher`), or
#'   `list(x, y)`.
#' @param student A Keras 3 model with the outputs of its teacher. A copy of it is trained, from its
#'   weights on, and it stays as it is; the copy is compiled as its teacher, unless the student is
#'   compiled. `NULL` makes one.
#' @param temperature T, above 0: more shows more of what the teacher thinks of the wrong classes.
#' @param alpha Share of the labels' loss: 0 is the teacher alone, 1 the labels alone.
#' @param width Share of the teacher's units and filters, between 0 and 1.
#' @param epochs Passes over the training rows.
#' @param ... Further arguments of [gpu_fit()] by name: `engine`, `schedule`, `clip_norm`,
#'   `clip_value`, `clip_global_norm`, `ema`, `early_stopping`, `checkpoint`, `tensorboard`,
#'   `on_oom`.
#' @inheritParams gpu_quantize
#' @param max_drop By how much the student's metric may be worse than the teacher's; see
#'   [gpu_quantize()].
#' @param verbose Whether progress is shown, as in [gpu_fit()].
#' @return A [gpu_compression] with the student in `$model`; "before" is the teacher.
#' @section Errors:
#' `gpukeras_error_compression` if the student is worse by more than `max_drop`,
#' `gpukeras_error_model` if its outputs are not those of its teacher.
#' @references Hinton, G., Vinyals, O. and Dean, J. (2015). Distilling the knowledge in a neural
#'   network. *arXiv* 1503.02531. \doi{10.48550/arXiv.1503.02531}
#'
#'   Beyer, L. et al. (2022). Knowledge distillation: a good teacher is patient and consistent.
#'   *CVPR*. \doi{10.48550/arXiv.2106.05237}
#' @examplesIf interactive()
#' train <- gpu_dataset(Species ~ ., data = iris, validation = 0.2)
#' teacher <- gpu_mlp(train, units = c(256, 256))
#' gpu_fit(teacher, train, epochs = 20)
#' small <- gpu_distill(teacher, train, width = 0.1, epochs = 50)
#' gpu_predict(small$model, iris, type = "class")
#' @export
gpu_distill <- function(teacher, data, student = NULL, temperature = 3, alpha = 0.5, width = 0.5,
                        epochs = 100, ..., max_drop = NULL, metric = NULL, validation = NULL,
                        batch_size = NULL, verbose = TRUE) {
  teacher <- check_model(teacher)
  data <- as_training(data)
  options <- list(
    temperature = temperature, alpha = alpha, width = width, epochs = epochs,
    fit = fit_options(...), max_drop = max_drop, metric = metric, batch_size = batch_size
  )
  new_gpu_compression(suspendInterrupts(call_core("distill", list(
    teacher = teacher, data = data$handle, options = check_no_na_options(options),
    student = if (!is.null(student)) check_model(student),
    validation = as_measured_on(validation, data), on_event = progress_listener(verbose)
  ))))
}

#' Separable convolutions in place of others
#'
#' Replaces the one- and two-dimensional convolutions of a model by a depthwise and a pointwise one
#' each (Howard et al. 2017), where that takes fewer FLOPs. The new layers begin with the weights
#' that are nearest to the old kernels (a singular value decomposition for each channel), and are
#' then fine-tuned. The model given stays as it is.
#'
#' Most models need the fine-tuning: one filter for each channel keeps but a part of a kernel
#' (`$layers` says how much). Time falls by less than FLOPs, as depthwise convolutions are bound by
#' memory.
#'
#' @param model A sequential or functional Keras 3 model that has weights; compiled, where there is
#'   `data`.
#' @param data A [gpu_dataset()] or `list(x, y)` to fine-tune and measure on; `NULL` does neither.
#' @param rank Filters for each channel: more are nearer to the old layer, and cost more.
#' @param epochs Passes over the training rows; 0 for none.
#' @inheritParams gpu_quantize
#' @inheritParams gpu_distill
#' @return A [gpu_compression] with the new model in `$model`, and in `$layers` the FLOPs of each
#'   layer before and after.
#' @section Errors:
#' `gpukeras_error_compression` if the metric gets worse by more than `max_drop`,
#' `gpukeras_error_model` if no convolution gains.
#' @references Howard, A. G. et al. (2017). MobileNets: efficient convolutional neural networks for
#'   mobile vision applications. *arXiv* 1704.04861. \doi{10.48550/arXiv.1704.04861}
#' @seealso [gpu_cost()] says where it would pay.
#' @examplesIf interactive()
#' small <- gpu_separable(model, train, epochs = 5, max_drop = 0.01)
#' small$layers
#' @export
gpu_separable <- function(model, data = NULL, rank = 1, epochs = 5, ..., exclude = NULL,
                          max_drop = NULL, metric = NULL, validation = NULL, batch_size = NULL,
                          verbose = TRUE) {
  model <- check_model(model)
  data <- as_measured(data)
  options <- list(
    rank = rank, epochs = epochs, fit = fit_options(...), exclude = as.list(exclude),
    max_drop = max_drop, metric = metric, batch_size = batch_size
  )
  new_gpu_compression(suspendInterrupts(call_core("separate", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_measured_on(validation, data), on_event = progress_listener(verbose)
  ))))
}

# The rows to measure on: a dataset, list(x, y), or none.
as_measured <- function(data, call = caller_env()) {
  if (!is.null(data)) as_training(data, call)
}

# Rows to evaluate on are encoded as others; without others they are a dataset.
as_measured_on <- function(validation, data, call = caller_env()) {
  if (is.null(data) && !is.null(validation)) {
    return(check_dataset(validation, "validation", call)$handle)
  }
  as_validation(validation, data, call)
}

# Arguments of gpu_fit() that go through `...`, as the core takes them.
fit_options <- function(..., call = caller_env()) {
  given <- list(...)
  if (length(given) > 0 && (is.null(names(given)) || !all(nzchar(names(given))))) {
    abort_gpukeras(
      "An argument has no name.", code = "spec", call = call,
      hint = "What is passed on to gpu_fit() is named."
    )
  }
  lapply(check_no_na_options(given, call), function(value) expand_folder(as_options(value)))
}

# The class ----------------------------------------------------------------------------------------

#' What a smaller model gained and lost
#'
#' What `gpu_prune()`, [gpu_quantize()], [gpu_distill()] and [gpu_separable()] give back: the new
#' model, and both models measured side by side.
#'
#' @section Fields:
#' - `$model`: the new Keras model, compiled as the one it was made of.
#' - `$figures`: a data frame, also `as.data.frame()`: `figure`, `unit`, `before`, `after`, `ratio`.
#'   The figures are the bytes of a `.keras` file without the optimizer's state, and of that file
#'   compressed as by gzip; parameters, and those of them that are not 0; FLOPs of a row's forward
#'   pass (see [gpu_cost()]); the latency of a single row and of a batch, as median and 95th
#'   percentile; loss and metrics.
#' - `$layers`: what was done to which layer: `layer`, `kind`, `change`, `before`, `after`, `unit`.
#' - `$listed`: layers that stayed as they were, and why: `layer`, `kind`, `reason`.
#' - `$history`: the [gpu_history] of the training that was part of it, or `NULL`.
#' - `$metric`, `$drop`: the metric that tells what was lost, and by how much it got worse.
#' - `$report`: all of it as the core reports it.
#'
#' @section How latency is measured:
#' A call of the model as a compiled TensorFlow function, from rows on the device to numbers in
#' memory, without what [gpu_predict()] does around it. After a warm-up each model is called 30 to
#' 300 times, both in turns. Times of less than a millisecond are mostly TensorFlow's own.
#' @param x,object A `gpu_compression`.
#' @param row.names,optional Not used.
#' @param ... Not used.
#' @name gpu_compression
NULL

# `record` is what the core gives: the model and the report.
new_gpu_compression <- function(record) {
  report <- record$report
  layers <- records_frame(
    report$layers, c("layer", "kind", "change", "before", "after", "unit")
  )
  structure(
    list(
      model = record$model, kind = report$kind, figures = compared_figures(report),
      layers = numeric_columns(layers, c("before", "after")),
      listed = records_frame(report$listed, c("layer", "kind", "reason")),
      metric = report$metric, drop = report$drop,
      history = if (!is.null(report$training)) new_gpu_history(report$training),
      notes = as.character(unlist(report$notes)), report = report
    ),
    class = "gpu_compression"
  )
}

# A row for each figure of both models.
compared_figures <- function(report) {
  before <- list_figures(report$before)
  after <- list_figures(report$after)
  frame <- data.frame(
    figure = names(before$value), unit = before$unit, before = unname(before$value),
    after = unname(after$value[names(before$value)])
  )
  frame$ratio <- ifelse(frame$before == 0, NA, frame$after / frame$before)
  frame
}

list_figures <- function(figures) {
  known <- function(value) as.numeric(value %||% NA)
  sizes <- c(
    "size on disk" = known(figures$disk_bytes), compressed = known(figures$packed_bytes),
    parameters = known(figures$parameters), "non-zeros" = known(figures$nonzeros),
    "FLOPs a row" = known(figures$flops)
  )
  times <- unlist(lapply(figures$latency, function(one) {
    rows <- if (one$rows == 1) "1 row" else paste(count_text(one$rows), "rows")
    rlang::set_names(
      c(one$median_s, one$p95_s), paste0("latency, ", rows, c("", " (95th percentile)"))
    )
  }))
  metrics <- unlist(figures$metrics)
  units <- c("bytes", "bytes", "", "", "FLOPs", rep("s", length(times)), rep("", length(metrics)))
  list(value = c(sizes, times, metrics), unit = units)
}

#' @rdname gpu_compression
#' @export
as.data.frame.gpu_compression <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  x$figures
}

# Print --------------------------------------------------------------------------------------------

#' @rdname gpu_compression
#' @param most How many layers are shown.
#' @export
format.gpu_compression <- function(x, most = 10, ...) {
  c(
    sprintf(
      "<gpu_compression> %s: %.3g s, measured on %s", compressed_by(x), x$report$seconds,
      x$report$device
    ),
    format_figures(x),
    format_loss(x),
    format_changes(x$layers, most),
    format_left(x$listed, most),
    wrap_lines(x$notes, "note:     ")
  )
}

compressed_by <- function(x) {
  settings <- x$report$settings
  shown <- settings[vapply(settings, function(one) length(one) == 1 && is.atomic(one), NA)]
  shown <- shown[!names(shown) %in% c("max_drop", "metric", "batch_size", "fit")]
  texts <- sprintf("%s %s", gsub("_", " ", names(shown)), vapply(shown, format, ""))
  verb <- c(
    prune = "pruned", quantize = "quantized", distill = "distilled", separate = "made separable"
  )[[x$kind]]
  if (length(texts) > 0) sprintf("%s (%s)", verb, paste(texts, collapse = ", ")) else verb
}

format_figures <- function(x) {
  figures <- x$figures
  sides <- if (x$kind == "distill") c("teacher", "student") else c("before", "after")
  cells <- list(
    c("", figures$figure), c(sides[1], figure_text(figures$before, figures$unit)),
    c(sides[2], figure_text(figures$after, figures$unit)),
    c("ratio", ifelse(is.na(figures$ratio), "", sprintf("%.2f", figures$ratio)))
  )
  columns <- Map(function(cell, side) format(cell, justify = side), cells, rep(
    c("left", "right"), c(1, 3)
  ))
  trimws(do.call(paste, c(list(" "), unname(columns), list(sep = "  "))), "right")
}

figure_text <- function(values, units) {
  mapply(function(value, unit) {
    if (is.na(value)) {
      return("?")
    }
    switch(unit,
      bytes = kept_text(value), FLOPs = count_si(value), s = format_time(value),
      if (value == round(value)) count_text(value) else format_digits(value)
    )
  }, values, units, USE.NAMES = FALSE)
}

format_loss <- function(x) {
  if (is.null(x$drop)) {
    return("lost:     not known, as no rows were evaluated")
  }
  part <- if (x$report$before$part == "validation") "validation rows" else "all rows"
  how <- if (x$drop > 0) "worse by" else if (x$drop < 0) "better by" else "as before:"
  size <- if (x$drop == 0) "no difference" else format(signif(abs(x$drop), 3))
  sprintf("lost:     %s is %s %s (%s)", x$metric, how, size, part)
}

format_changes <- function(layers, most) {
  if (nrow(layers) == 0) {
    return(NULL)
  }
  shown <- utils::head(layers, most)
  counts <- figure_text(c(shown$before, shown$after), rep(
    ifelse(shown$unit == "FLOPs", "FLOPs", ""), 2
  ))
  at <- seq_len(nrow(shown))
  lines <- sprintf(
    "  %s  %s  %s: %s to %s %s", format(shown$layer), format(shown$kind), shown$change,
    counts[at], counts[-at], shown$unit
  )
  left <- nrow(layers) - nrow(shown)
  c("changed:", lines, if (left > 0) sprintf("  ... and %d more: $layers", left))
}

format_left <- function(listed, most) {
  if (nrow(listed) == 0) {
    return(NULL)
  }
  shown <- utils::head(listed, most)
  lines <- sprintf("  %s  %s  %s", format(shown$layer), format(shown$kind), shown$reason)
  left <- nrow(listed) - nrow(shown)
  c("as they were:", lines, if (left > 0) sprintf("  ... and %d more: $listed", left))
}

#' @export
print.gpu_compression <- function(x, ...) {
  cli::cat_line(format(x, ...))
  invisible(x)
}

# Plots --------------------------------------------------------------------------------------------

#' @rdname gpu_compression
#' @export
plot.gpu_compression <- function(x, ...) {
  drawn <- drawn_figures(x)
  names <- levels(drawn$figure)
  before <- graphics::par("mai", "xpd")
  on.exit(graphics::par(before))
  wide <- max(graphics::strwidth(names, "inches")) + 0.3
  graphics::par(mai = c(0.9, wide, 0.5, 0.9))
  shares <- matrix(100 * drawn$share, nrow = 2, dimnames = list(levels(drawn$model), names))
  places <- graphics::barplot(
    shares,
    beside = TRUE, horiz = TRUE, las = 1, col = compression_colours, border = NA,
    xlim = c(0, max(100, shares)), xlab = paste0("% of the ", levels(drawn$model)[2])
  )
  graphics::par(xpd = NA)
  graphics::text(as.vector(shares), as.vector(places), drawn$text, pos = 4, cex = 0.8)
  graphics::legend(
    0, graphics::par("usr")[4], rev(levels(drawn$model)),
    fill = rev(compression_colours), border = NA, bty = "n", horiz = TRUE, yjust = 0
  )
  invisible(x)
}

#' @rdname gpu_compression
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_compression <- function(object, ...) { # nolint: object_name_linter.
  drawn <- drawn_figures(object)
  ggplot2::ggplot(
    drawn, ggplot2::aes(100 * .data$share, .data$figure, fill = .data$model, label = .data$text)
  ) +
    ggplot2::geom_col(position = "dodge") +
    ggplot2::geom_text(position = ggplot2::position_dodge(0.9), hjust = -0.1, size = 3) +
    ggplot2::scale_fill_manual(
      values = rlang::set_names(compression_colours, levels(drawn$model)),
      breaks = rev(levels(drawn$model))
    ) +
    ggplot2::expand_limits(x = 115 * max(drawn$share)) +
    ggplot2::labs(x = paste0("% of the ", levels(drawn$model)[2]), y = NULL, fill = NULL)
}

# Okabe and Ito's, which colour-blind people can tell apart: after, and before, as bars go up.
compression_colours <- c("#E69F00", "#0072B2")

# Two rows for each figure that is known of both models; the first figure is drawn last, on top.
drawn_figures <- function(x) {
  figures <- x$figures[!is.na(x$figures$ratio) & x$figures$ratio >= 0, ]
  losses <- grepl("95th|loss$", figures$figure)
  figures <- figures[!losses, ]
  figures <- figures[rev(seq_len(nrow(figures))), ]
  sides <- if (x$kind == "distill") c("student", "teacher") else c("model after", "model before")
  after <- figure_text(figures$after, figures$unit)
  before <- figure_text(figures$before, figures$unit)
  data.frame(
    figure = factor(rep(figures$figure, each = 2), figures$figure),
    model = factor(rep(sides, nrow(figures)), sides),
    share = as.vector(rbind(figures$ratio, 1)),
    text = as.vector(rbind(after, before))
  )
}
