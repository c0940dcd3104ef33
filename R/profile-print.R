# Lines of print() for profiles.

#' @export
format.gpu_profile <- function(x, ..., most = 6) {
  format_fields(
    wrap_line(x$sentence, sprintf("<gpu_profile> %s: ", x$verdict)),
    decided = if (!is.null(x$decided_by$value)) format_decision(x$decided_by),
    step = format_step(x),
    peak = format_peak(x$peak),
    wrap_line(paste0(x$engine, if (nzchar(x$reason)) sprintf(" (%s)", x$reason)), "engine:  "),
    format_shares(x),
    wrap_line(format_input(x$input), "input:   "),
    if (nrow(x$stages) > 0) wrap_line(format_stage_list(x$stages), "stages:  "),
    copied = if (!is.null(x$bytes)) format_copied(x$bytes),
    format_table("layers", format_layers(slowest_first(x$layers)), most),
    format_table("ops", format_ops(x$ops), most),
    format_table("kernels", format_ops(x$kernels), most),
    format_advice(x$advice),
    wrap_lines(x$notes, "* "),
    trace = if (nzchar(x$trace)) x$trace,
    width = 9
  )
}

# The share of the step that decided the verdict, and its threshold.
format_decision <- function(decided) {
  paste0(
    decided$name, " ", format_percent(decided$value),
    if (!is.null(decided$threshold)) {
      sprintf(", compared with %s", format_percent(decided$threshold))
    }
  )
}

format_step <- function(x) {
  sprintf(
    "%s at batch size %s on %s, %s rows/s",
    format_time(x$step_s), format_count(x$batch_size), x$device,
    format_count(signif(x$samples_per_s, 3))
  )
}

# The share of the card's peak. Of a CPU, and in a profile of an earlier version, there is none.
format_peak <- function(peak) {
  if (!is.null(peak)) {
    sprintf(
      "%s of %s TFLOP/s in %s (%s, %s)", format_percent(peak$share), format_number(peak$tflops, 4),
      peak$dtype, peak$card, peak$source
    )
  }
}

# A line for each part of the step, with a bar of text.
format_shares <- function(x, width = 40) {
  shares <- x$shares[!is.na(x$shares)]
  if (length(shares) == 0) {
    return(NULL)
  }
  block <- if (cli::is_utf8_output()) "\u2588" else "#"
  lines <- sprintf(
    "  %-9s %5s  %9s  %s", names(shares), format_percent(shares), format_time(shares * x$step_s),
    strrep(block, round(width * shares))
  )
  trimws(lines, "right")
}

format_input <- function(input) {
  sprintf(
    "%s of a step waiting; alone it takes %s a batch; a step without it %s%s",
    format_time(input$wait_s), format_time(input$alone_s), format_time(input$repeated_s),
    if (isTRUE(input$speedup_if_free >= 1.05)) {
      sprintf(
        ": training would be %s as fast if it were free", format_factor(input$speedup_if_free)
      )
    } else {
      ""
    }
  )
}

format_stage_list <- function(stages) {
  parts <- sprintf(
    "%s %s (%s)", stages$stage, format_time(stages$batch_s), format_percent(stages$share)
  )
  paste(parts, collapse = ", ")
}

format_copied <- function(bytes) {
  sprintf(
    "%s to the device and %s back in a step", format_bytes(bytes$to_device),
    format_bytes(bytes$to_host)
  )
}

# The slowest rows; as.data.frame() has all.
format_table <- function(name, frame, most) {
  if (nrow(frame) == 0) {
    return(NULL)
  }
  more <- nrow(frame) - most
  hint <- if (more > 0) sprintf(" (%d more: as.data.frame(what = \"%s\"))", more, name)
  rows <- trimws(format_frame(utils::head(frame, most)), "right")
  c(paste0(name, ":", hint), paste0(" ", rows))
}

slowest_first <- function(layers) layers[order(-layers$total_s), ]

format_layers <- function(layers) {
  rest <- !nzchar(layers$kind) # rows that are no layers have no forward and backward pass
  data.frame(
    layer = layers$layer, kind = layers$kind, total = format_time(layers$total_s),
    share = format_percent(layers$share),
    forward = ifelse(rest, "", format_time(layers$forward_s)),
    backward = ifelse(rest, "", format_time(layers$backward_s))
  )
}

# Kernels have no type.
format_ops <- function(ops) {
  columns <- list(
    name = shorten_middle(ops$name), type = ops$type, times = format_mean_count(ops$count),
    total = format_time(ops$total_s), share = format_percent(ops$share)
  )
  if (!any(nzchar(ops$type))) columns$type <- NULL
  data.frame(columns)
}

format_advice <- function(advice) {
  if (nrow(advice) == 0) {
    return(NULL)
  }
  gains <- format_gains(advice)
  gains <- ifelse(nzchar(gains), sprintf(" [%s]", gains), "")
  listed <- lapply(seq_len(nrow(advice)), function(i) {
    one <- advice[i, ]
    c(
      wrap_line(paste0(one$text, gains[i]), sprintf("%d. ", i)),
      if (nzchar(one$why)) wrap_line(one$why, "   "),
      if (nzchar(one$apply)) paste("  ", one$apply)
    )
  })
  c("advice:", unlist(listed))
}

# The expected gain, and the measured one with `verify = TRUE`.
format_gains <- function(advice) {
  expected <- ifelse(
    is.na(advice$gain), "", paste("expected: about", format_factor(advice$gain), "as fast")
  )
  measured <- ifelse(is.na(advice$measured), "", paste("measured:", format_factor(advice$measured)))
  both <- nzchar(expected) & nzchar(measured)
  paste0(expected, ifelse(both, ", ", ""), measured)
}

format_mean_count <- function(count) {
  whole <- abs(count - round(count)) < 0.05
  ifelse(whole, sprintf("%.0f", count), sprintf("%.1f", count))
}
