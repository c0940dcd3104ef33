# What print() tells of a profile, and numbers with their units.

#' @export
format.gpu_profile <- function(x, ..., most = 6) {
  c(
    wrap_line(x$sentence, sprintf("<gpu_profile> %s: ", x$verdict)),
    if (!is.null(x$decided_by$value)) paste("decided:", format_decision(x$decided_by)),
    paste("step:   ", format_step(x)),
    wrap_line(paste0(x$engine, if (nzchar(x$reason)) sprintf(" (%s)", x$reason)), "engine:  "),
    format_shares(x),
    wrap_line(format_input(x$input), "input:   "),
    if (nrow(x$stages) > 0) wrap_line(format_stage_list(x$stages), "stages:  "),
    if (!is.null(x$bytes)) paste("copied: ", format_copied(x$bytes)),
    format_table("layers", format_layers(slowest_first(x$layers)), most),
    format_table("ops", format_ops(x$ops), most),
    format_table("kernels", format_ops(x$kernels), most),
    format_advice(x$advice),
    wrap_lines(x$notes, "* "),
    if (nzchar(x$trace)) paste("trace:  ", x$trace)
  )
}

# Text in the lines of a console, below each other behind what it begins with.
wrap_line <- function(text, first, behind = min(nchar(first), 10)) {
  if (!nzchar(text)) {
    return(first)
  }
  strwrap(text, max(60, getOption("width")), initial = first, prefix = strrep(" ", behind))
}

wrap_lines <- function(texts, first) unlist(lapply(texts, wrap_line, first))

# The share of the step that decided, and what it was compared with.
format_decision <- function(decided) {
  paste0(
    decided$name, " ", percent(decided$value),
    if (!is.null(decided$threshold)) sprintf(", compared with %s", percent(decided$threshold))
  )
}

format_step <- function(x) {
  sprintf(
    "%s at batch size %s on %s, %s rows/s",
    format_time(x$step_s), count_text(x$batch_size), x$device,
    count_text(signif(x$samples_per_s, 3))
  )
}

# A line for each part of the step, with a bar of text.
format_shares <- function(x, width = 40) {
  shares <- x$shares[!is.na(x$shares)]
  if (length(shares) == 0) {
    return(NULL)
  }
  block <- if (cli::is_utf8_output()) "\u2588" else "#"
  lines <- sprintf(
    "  %-9s %5s  %9s  %s", names(shares), percent(shares), format_time(shares * x$step_s),
    strrep(block, round(width * shares))
  )
  trimws(lines, "right")
}

format_input <- function(input) {
  sprintf(
    "%s of a step waiting; alone it takes %s a batch; a step without it %s%s",
    format_time(input$wait_s), format_time(input$alone_s), format_time(input$repeated_s),
    if (isTRUE(input$speedup_if_free >= 1.05)) {
      sprintf(": training would be %s as fast if it were free", times_text(input$speedup_if_free))
    } else {
      ""
    }
  )
}

format_stage_list <- function(stages) {
  parts <- sprintf("%s %s (%s)", stages$stage, format_time(stages$batch_s), percent(stages$share))
  paste(parts, collapse = ", ")
}

format_copied <- function(bytes) {
  sprintf(
    "%s to the device and %s back in a step", size_text(bytes$to_device), size_text(bytes$to_host)
  )
}

# The rows that take most time; as.data.frame() has all.
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
  rest <- !nzchar(layers$kind) # what is no layer has no two passes
  data.frame(
    layer = layers$layer, kind = layers$kind, total = format_time(layers$total_s),
    share = percent(layers$share),
    forward = ifelse(rest, "", format_time(layers$forward_s)),
    backward = ifelse(rest, "", format_time(layers$backward_s))
  )
}

# Kernels have no type.
format_ops <- function(ops) {
  columns <- list(
    name = shorten_middle(ops$name), type = ops$type, times = format_count(ops$count),
    total = format_time(ops$total_s), share = percent(ops$share)
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

# What is expected, and what was measured where somebody asked for it.
format_gains <- function(advice) {
  expected <- ifelse(
    is.na(advice$gain), "", paste("expected: about", times_text(advice$gain), "as fast")
  )
  measured <- ifelse(is.na(advice$measured), "", paste("measured:", times_text(advice$measured)))
  both <- nzchar(expected) & nzchar(measured)
  paste0(expected, ifelse(both, ", ", ""), measured)
}

#' @export
print.gpu_profile <- function(x, ...) {
  cat_lines(format(x, ...))
  invisible(x)
}

# Numbers in words ---------------------------------------------------------------------------------

# Three digits, in the unit that suits; "-" where there is none.
format_time <- function(seconds) {
  text <- vapply(as.numeric(seconds), function(one) {
    unit <- time_unit(one)
    sprintf("%s %s", format_digits(one / unit$second_per), unit$name)
  }, "")
  ifelse(is.na(seconds), "-", text)
}

format_digits <- function(x) {
  if (isTRUE(x >= 999.5)) {
    return(count_text(round(x)))
  }
  sub("[.]$", "", formatC(x, digits = 3, format = "fg", flag = "#"))
}

# Whole percents, but no part that is there at all is 0.
percent <- function(shares) {
  text <- sprintf("%.0f %%", 100 * shares)
  small <- !is.na(shares) & shares > 0 & shares < 0.005
  ifelse(is.na(shares), "-", ifelse(small, "<1 %", text))
}

times_text <- function(factor) {
  paste(ifelse(factor < 10, sprintf("%.1f", factor), sprintf("%.0f", factor)), "times")
}

format_count <- function(count) {
  whole <- abs(count - round(count)) < 0.05
  ifelse(whole, sprintf("%.0f", count), sprintf("%.1f", count))
}

size_text <- function(bytes) {
  if (is.null(bytes) || is.na(bytes)) {
    return("an unknown number of bytes")
  }
  if (bytes < 1024) {
    return(sprintf("%.0f bytes", bytes))
  }
  power <- min(3, floor(log(bytes, 1024)))
  paste(format_digits(bytes / 1024^power), c("KiB", "MiB", "GiB")[power])
}

# The end of an op's name says most, its beginning where it belongs.
shorten_middle <- function(text, most = 48) {
  long <- nchar(text) > most
  half <- most %/% 2 - 2
  cut <- paste0(substr(text, 1, half), "...", substr(text, nchar(text) - half, nchar(text)))
  ifelse(long, cut, text)
}
