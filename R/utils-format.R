# Values as text: counts, numbers, bytes, times, shares, tables. A value that is not known is "?",
# in tables of measured times "-".

# A number with its noun: "1 epoch", "2 epochs". Nouns are given as plurals.
count_of <- function(count, nouns) {
  ends <- c(
    categories = "category", entries = "entry", batches = "batch", "dates or times" = "date or time"
  )
  one <- if (nouns %in% names(ends)) ends[[nouns]] else sub("s$", "", nouns)
  paste(format_count(count), if (count == 1) one else nouns)
}

format_count <- function(x) format(x, big.mark = ",", scientific = FALSE, trim = TRUE)

# Each number by itself, with the given number of significant digits.
format_number <- function(x, digits = 4, mark = "") {
  one <- function(value) format(signif(value, digits), digits = digits, big.mark = mark)
  vapply(x, one, "", USE.NAMES = FALSE)
}

# Three digits, trailing zeros included.
format_digits <- function(x) {
  if (isTRUE(x >= 999.5)) {
    return(format_count(round(x)))
  }
  sub("[.]$", "", formatC(x, digits = 3, format = "fg", flag = "#"))
}

# Three digits and an SI prefix: "21.3 MFLOPs".
format_si <- function(x, unit = "") {
  x <- as.numeric(x %||% NA)
  power <- ifelse(is.na(x) | x < 1000, 0, pmin(4, floor(log10(pmax(x, 1)) / 3)))
  prefix <- c("", "k", "M", "G", "T")[power + 1]
  text <- trimws(paste0(format_number(x / 1000^power, 3), " ", prefix, unit), "right")
  ifelse(is.na(x), "?", text)
}

# Three digits below a GiB, one after the point from there on.
format_bytes <- function(bytes) {
  bytes <- as.numeric(bytes %||% NA)
  power <- ifelse(is.na(bytes) | bytes < 1024, 0, ifelse(bytes < 2^20, 1, 2))
  text <- paste(format_number(bytes / 1024^power, 3), c("B", "KiB", "MiB")[power + 1])
  text <- ifelse(!is.na(bytes) & bytes >= 2^30, sprintf("%.1f GiB", bytes / 2^30), text)
  ifelse(is.na(bytes), "?", text)
}

# Three digits, in the unit that suits.
format_time <- function(seconds) {
  text <- vapply(as.numeric(seconds), function(one) {
    unit <- time_unit(one)
    sprintf("%s %s", format_digits(one / unit$second_per), unit$name)
  }, "")
  ifelse(is.na(seconds), "-", text)
}

# The unit in which a time has one to three digits before the point.
time_unit <- function(seconds) {
  units <- c(us = 1e-6, ms = 1e-3, s = 1)
  name <- if (!isTRUE(seconds >= 1e-3)) "us" else if (seconds < 1) "ms" else "s"
  list(name = name, second_per = units[[name]])
}

# Whole percents; a share above 0 is never shown as 0.
format_percent <- function(shares) {
  text <- sprintf("%.0f %%", 100 * shares)
  small <- !is.na(shares) & shares > 0 & shares < 0.005
  ifelse(is.na(shares), "-", ifelse(small, "<1 %", text))
}

format_factor <- function(factor) {
  paste(ifelse(factor < 10, sprintf("%.1f", factor), sprintf("%.0f", factor)), "times")
}

# A setting's value.
format_value <- function(value) {
  if (length(value) == 0) {
    return("none")
  }
  paste(vapply(value, format, character(1)), collapse = ", ")
}

# The shape of a row; an open dimension is "?".
format_shape <- function(shape) {
  sizes <- vapply(shape, function(size) if (is.null(size)) "?" else format(size), "")
  paste(sizes, collapse = " x ")
}

# The first items of a vector, separated by commas.
shorten <- function(x, most = 5) {
  if (length(x) > most) x <- c(utils::head(x, most), "...")
  paste(x, collapse = ", ")
}

# Texts without their middles: the beginning of an op's name says where it belongs, the end what it
# does.
shorten_middle <- function(text, most = 48) {
  long <- nchar(text) > most
  half <- most %/% 2 - 2
  cut <- paste0(substr(text, 1, half), "...", substr(text, nchar(text) - half, nchar(text)))
  ifelse(long, cut, text)
}

# Tables -------------------------------------------------------------------------------------------

# Named columns of text as aligned lines below their names.
format_columns <- function(cells, sides = "right") {
  columns <- Map(function(name, cell, side) {
    format(c(name, cell), justify = side)
  }, names(cells), cells, rep_len(sides, length(cells)))
  trimws(do.call(paste, c(list(" "), unname(columns), sep = "  ")), "right")
}

# A data frame as lines, its columns `*_bytes` in human units.
format_frame <- function(x) {
  shown <- as.data.frame(x)
  sized <- grep("_bytes$", names(shown))
  shown[sized] <- lapply(shown[sized], format_bytes)
  names(shown) <- sub("_bytes$", "", names(shown))
  before <- options(width = 500) # a row stays a line
  on.exit(options(before))
  utils::capture.output(print(shown, row.names = FALSE, right = FALSE))
}

# Lines --------------------------------------------------------------------------------------------

# Text wrapped to the console; later lines are indented below what the first one begins with.
wrap_line <- function(text, first, indent = min(nchar(first), 10)) {
  if (!nzchar(text)) {
    return(first)
  }
  strwrap(text, max(60, getOption("width")), initial = first, prefix = strrep(" ", indent))
}

wrap_lines <- function(texts, first) unlist(lapply(texts, wrap_line, first))

# Lines for a terminal. Text from a file must not control it: its control characters are shown.
cat_lines <- function(...) cli::cat_line(show_controls(paste0(...)))

# Control characters, and characters that change the writing direction, as they are written in code.
show_controls <- function(text) {
  text <- enc2utf8(as.character(text))
  broken <- !validUTF8(text)
  text[broken] <- iconv(text[broken], "UTF-8", "UTF-8", sub = "byte")
  hidden <- "[\\x01-\\x08\\x0b-\\x1f\\x7f\\x{80}-\\x{9f}\\x{202a}-\\x{202e}\\x{2066}-\\x{2069}]"
  found <- gregexpr(paste0("(*UTF8)", hidden), text, perl = TRUE)
  regmatches(text, found) <- lapply(regmatches(text, found), function(signs) {
    codes <- vapply(signs, utf8ToInt, 0L)
    sprintf(c("\\u%04x", "\\x%02x")[1 + (codes < 256)], codes)
  })
  text
}
