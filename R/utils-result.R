# What all results of gpukeras share: how they are created from a record, and how they are printed.
# A class defines format(), which returns the lines; print() is common to all.

# A record as a result; `class` is one or several, the most specific first.
new_result <- function(record, class) {
  if ("notes" %in% names(record)) record$notes <- as_chr(record$notes)
  structure(record, class = c(class, "gpu_result"))
}

# A data frame as a result.
new_result_frame <- function(frame, class) {
  structure(frame, class = c(class, "gpu_result", "data.frame"))
}

#' @export
print.gpu_result <- function(x, ...) {
  cat_lines(format(x, ...))
  invisible(x)
}

# Lines of a result: named arguments are fields, `name:     text`, the others are lines as they
# are. NULL is no line.
format_fields <- function(..., width = 10) {
  parts <- list(...)
  lines <- Map(function(name, text) {
    if (!nzchar(name) || length(text) == 0) {
      return(text)
    }
    paste0(formatC(paste0(name, ": "), width = -width), text)
  }, rlang::names2(parts), parts)
  unlist(unname(lines))
}

format_notes <- function(notes) if (length(notes) > 0) paste("*", notes)

# States that a table has more rows than are shown, and where they are.
format_more <- function(count, where, indent = "  ") {
  if (count > 0) sprintf("%s... and %d more: %s", indent, count, where)
}
