# Methods of R's generics for datasets: dim(), names(), `[`, summary().

#' @param object A `gpu_dataset`.
#' @param i Row numbers, as in `x[i, ]` or `x[i]`.
#' @param j,drop Not used: all columns are returned.
#' @section As other data:
#' `dim()`, `nrow()`, `ncol()` and `names()` count and name the columns of the original data frame
#' (without the label), those of an array, or the inputs of a named list. Rows include those for
#' validation; their number is `NA` for streamed rows. `x[1:3, ]` returns rows as the model gets
#' them, in their original order: `list(x, y)`, or `list(x, y, weights)`; of several inputs `x` is
#' a list with an element for each. `summary()` returns a data frame of the columns and what the
#' recipe learned about them, `NA` for the mean of a column that is taken as it is.
#' @rdname gpu_dataset
#' @export
dim.gpu_dataset <- function(x) {
  parts <- length(x$inputs)
  columns <- if (parts > 0) parts else length(x$columns)
  c(as.double(x$rows %||% NA), if (columns > 0) columns else unlist(x$shape))
}

#' @rdname gpu_dataset
#' @export
names.gpu_dataset <- function(x) {
  x <- unclass(x)
  parts <- if (length(x$inputs) > 0) x$inputs else x$columns
  own <- if (nzchar(x$path_column %||% "")) x$path_column else x$names
  names <- if (length(parts) > 0) lapply(parts, `[[`, "name") else own
  if (length(names) > 0) as.character(unlist(names))
}

#' @rdname gpu_dataset
#' @export
`[.gpu_dataset` <- function(x, i, j, drop = FALSE) {
  call <- subset_call(sys.call())
  if (!missing(j)) {
    abort_gpukeras(
      "Columns cannot be taken out of a gpu_dataset.",
      code = "spec", hint = "Choose them before, and make the dataset of them.", arg = "j",
      call = call
    )
  }
  if (missing(i)) i <- TRUE
  if (is.character(i)) {
    return(take_fields(x, i, call))
  }
  numbers <- row_places(x, i, call)
  rows <- list(data = check_alive(x, call)$handle, rows = as.list(numbers))
  taken <- call_core("take_rows", rows, call = call)
  inputs <- lapply(taken$inputs, as_taken_input)
  names(inputs) <- vapply(taken$inputs, `[[`, "", "name")
  x <- if (identical(names(inputs), "")) inputs[[1]] else inputs
  drop_null(list(x = x, y = taken$y, weights = taken$weights))
}

# The rows of an input, with the names of its columns.
as_taken_input <- function(input) {
  values <- input$values
  if (is.null(values)) values <- array(as_chr(input$texts), unlist(input$dim))
  if (length(input$names) > 0) dimnames(values)[[length(dim(values))]] <- unlist(input$names)
  values
}

# The user's call for messages, such as x[500]; not where a value stands in it, as by do.call().
subset_call <- function(call) {
  written <- vapply(as.list(call), function(part) {
    missing(part) || is.language(part) || is_plain_scalar(part)
  }, NA)
  call[[1]] <- quote(`[`)
  if (all(written)) call else quote(x[i])
}

# Fields of the record.
take_fields <- function(x, i, call) {
  fields <- unclass(x)
  unknown <- setdiff(i, names(fields))
  if (length(unknown) > 0) {
    abort_gpukeras(
      sprintf("The gpu_dataset has no field `%s`.", unknown[1]),
      code = "spec", arg = "i", call = call,
      hint = "Rows are taken out by their numbers, such as x[1:3, ]; columns cannot be."
    )
  }
  fields[i]
}

row_places <- function(x, i, call) {
  if (is.na(nrow(x))) {
    abort_gpukeras(
      "Rows in sequence have no numbers: none can be taken out of this gpu_dataset.",
      code = "spec", hint = "Use `cache = TRUE`, which keeps them.", arg = "i", call = call
    )
  }
  i <- plain_number(i, call = call)
  if (!is.numeric(i) && !is.logical(i)) abort_spec(i, "i", "row numbers", call)
  numbers <- seq_len(nrow(x))[i]
  if (anyNA(numbers)) {
    abort_gpukeras(
      sprintf("The gpu_dataset has %s: some of `i` are not there.", count_of(nrow(x), "rows")),
      code = "spec", arg = "i", call = call
    )
  }
  numbers
}

#' @rdname gpu_dataset
#' @export
summary.gpu_dataset <- function(object, ...) {
  check_alive(object)
  new_columns_summary(object)
}

# What a dataset's or a recipe's print() shows, and its columns as a data frame.
new_columns_summary <- function(object) {
  value <- function(rule, field) as.double(rule[[field]] %||% NA)
  columns <- object$columns
  frame <- data.frame(
    column = vapply(columns, `[[`, "", "name"), kind = vapply(columns, `[[`, "", "kind"),
    levels = vapply(columns, function(rule) length(rule$levels), 0L),
    mean = vapply(columns, value, 0, "center"), deviation = vapply(columns, value, 0, "scale")
  )
  as_they_are <- frame$mean %in% 0 & frame$deviation %in% 1
  numbers <- frame$kind %in% c("number", "duration") & !as_they_are
  frame$levels[frame$kind != "category"] <- NA
  frame[!numbers, c("mean", "deviation")] <- NA
  structure(list(text = format(object), columns = frame), class = "summary.gpu_dataset")
}

#' @export
print.summary.gpu_dataset <- function(x, ...) {
  cat_lines(x$text)
  if (nrow(x$columns) > 0) print(x$columns, row.names = FALSE, digits = 4)
  invisible(x)
}
