# Several histories together: their values as one data frame, and a row of facts for each.

#' @rdname gpu_history
#' @export
rbind.gpu_history <- function(..., deparse.level = 1) { # nolint: object_name_linter.
  histories <- list(...)
  names <- name_histories(histories, as.list(substitute(list(...)))[-1])
  parts <- Map(as_runs, histories, names, MoreArgs = list(call = environment()))
  runs <- do.call(rbind.data.frame, lapply(parts, `[[`, "runs"))
  unique_names <- make.unique(runs$model, sep = " ")
  counts <- cumsum(c(0, vapply(parts, function(part) nrow(part$runs), 0L)))
  frames <- lapply(seq_along(parts), function(i) {
    frame <- parts[[i]]$frame
    frame$model <- unique_names[counts[i] + as.integer(frame$model)]
    frame
  })
  runs$model <- unique_names
  frame <- do.call(rbind.data.frame, frames)
  frame$model <- factor(frame$model, unique_names)
  rownames(frame) <- NULL
  structure(new_result_frame(frame, "gpu_histories"), runs = runs)
}

# rbind() dispatches on arguments of two classes only if both have the same method.
#' @export
rbind.gpu_histories <- rbind.gpu_history

# The given names, or else those of the variables, or else numbers.
name_histories <- function(histories, expressions) {
  given <- rlang::names2(histories)
  symbols <- vapply(seq_along(histories), function(i) {
    one <- if (i <= length(expressions)) expressions[[i]]
    if (is.symbol(one)) as.character(one) else paste("fit", i)
  }, "")
  ifelse(nzchar(given), given, symbols)
}

# The values and the facts of a history, or of several already combined.
as_runs <- function(x, name, call) {
  if (inherits(x, "gpu_histories")) {
    return(list(frame = as.data.frame(x), runs = attr(x, "runs")))
  }
  if (!inherits(x, "gpu_history")) {
    abort_spec(x, name, "a gpu_history", call)
  }
  values <- as.data.frame(x)
  list(
    frame = data.frame(model = factor(rep(name, nrow(values)), name), values),
    runs = data.frame(
      model = name, epochs = x$epochs, samples_per_s = x$samples_per_s, elapsed_s = x$elapsed_s,
      input_wait = x$input_wait, peak_memory = x$peak_memory, device = x$device,
      engine = x$engine$engine, batch_size = x$plan$batch_size, precision = x$precision,
      stopped = x$stopped
    )
  )
}

#' @rdname gpu_history
#' @export
as.data.frame.gpu_histories <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  attr(x, "runs") <- NULL
  class(x) <- "data.frame"
  x
}

#' @rdname gpu_history
#' @export
summary.gpu_histories <- function(object, ...) {
  runs <- attr(object, "runs")
  frame <- as.data.frame(object)
  judged <- frame$metric == "loss" & frame$data == compared_data(frame)
  best <- lapply(split(frame[judged, ], frame$model[judged]), function(rows) {
    rows[best_row(rows$value, -1), c("epoch", "value")]
  })
  best <- do.call(rbind, best)
  values <- rlang::set_names(
    list(best$value, best$epoch),
    c(if (compared_data(frame) == "validation") "val_loss" else "loss", "best_epoch")
  )
  others <- setdiff(names(runs), c("model", "epochs"))
  data.frame(runs[c("model", "epochs")], values, runs[others], row.names = NULL)
}

# The data on which losses are compared.
compared_data <- function(frame) {
  if (any(frame$data == "validation")) "validation" else "training"
}

# A subset is a plain data frame.
#' @export
`[.gpu_histories` <- function(x, ...) as.data.frame(x)[...]

#' @export
format.gpu_histories <- function(x, ...) {
  runs <- summary(x)
  loss <- names(runs)[3]
  columns <- list(
    model = runs$model, epochs = runs$epochs,
    loss = ifelse(is.na(runs[[3]]), "-", format_number(runs[[3]])),
    `best epoch` = ifelse(is.na(runs$best_epoch), "-", runs$best_epoch),
    `rows/s` = vapply(signif(runs$samples_per_s, 3), format_count, ""),
    seconds = sprintf("%.3g", runs$elapsed_s), device = runs$device, engine = runs$engine,
    stopped = runs$stopped
  )
  names(columns)[3] <- loss
  c(
    paste("<gpu_histories>", count_of(nrow(runs), "trainings")),
    format_frame(data.frame(columns, check.names = FALSE))
  )
}

#' @rdname gpu_history
#' @export
plot.gpu_histories <- function(x, metric = NULL, ...) {
  frame <- drawn_rows(x, metric)
  by <- interaction(frame$model, frame$data, sep = ", ", lex.order = TRUE, drop = TRUE)
  colours <- model_colours(frame)
  first <- frame[match(levels(by), by), ]
  styles <- Map(
    function(model, data) list(col = colours[[model]], lty = data_lines[[data]]),
    as.character(first$model), as.character(first$data)
  )
  draw_panels(frame, by, rlang::set_names(styles, levels(by)), list(), list(...))
  invisible(x)
}

#' @rdname gpu_history
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_histories <- function(object, metric = NULL, ...) { # nolint: object_name_linter.
  frame <- drawn_rows(object, metric)
  drawn <- ggplot2::ggplot(
    frame,
    ggplot2::aes(.data$epoch, .data$value, colour = .data$model, linetype = .data$data)
  )
  add_panels(drawn, frame, model_colours(frame))
}

model_colours <- function(frame) {
  models <- levels(frame$model)
  rlang::set_names(grDevices::hcl.colors(length(models), "Dark 3"), models)
}
