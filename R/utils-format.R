# Records cross from Python as named lists; in R a list of them is a data frame.

# NULL becomes NA; a column whose cells are not all single values stays a list.
records_frame <- function(records, columns = names(records[[1]])) {
  cells <- lapply(columns, function(name) {
    lapply(records, function(record) record[[name]] %||% NA)
  })
  names(cells) <- columns
  frame <- lapply(cells, function(column) {
    single <- all(lengths(column) == 1) && all(vapply(column, is.atomic, logical(1)))
    if (single) unlist(column) else I(column)
  })
  structure(frame, class = "data.frame", row.names = seq_along(records))
}

# Bytes in human units; a size that is not determined is "?".
format_bytes <- function(bytes) {
  bytes <- as.numeric(bytes)
  gibibytes <- !is.na(bytes) & bytes >= 2^30
  text <- sprintf("%.0f MiB", bytes / 2^20)
  text[gibibytes] <- sprintf("%.1f GiB", bytes[gibibytes] / 2^30)
  ifelse(is.na(bytes), "?", text)
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

# A setting's value as text.
format_value <- function(value) {
  if (length(value) == 0) {
    return("none")
  }
  paste(vapply(value, format, character(1)), collapse = ", ")
}

# Lines for a terminal. What a file says must not drive it: its control characters are shown.
cat_lines <- function(...) cli::cat_line(show_controls(paste0(...)))

# Control characters, and those that turn the direction of writing, as they are written in code.
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
