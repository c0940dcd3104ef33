# Records of the core, named lists, as R values.

# Records as a data frame. NULL becomes NA; a column whose cells are not all single values stays a
# list.
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

# Columns of a record frame as doubles: one of NA alone is logical, one of small and large counts is
# mixed.
numeric_columns <- function(frame, columns) {
  frame[columns] <- lapply(frame[columns], as.numeric)
  frame
}

# Records as a data frame with these columns and types, also where there are no records.
typed_frame <- function(records, columns) {
  one <- function(name) {
    empty <- columns[[name]]
    cell <- function(record) as.vector(record[[name]] %||% NA, mode(empty))
    as.vector(vapply(records, cell, empty), mode(empty))
  }
  data.frame(rlang::set_names(lapply(names(columns), one), names(columns)))
}

# A list of strings as a character vector.
as_chr <- function(values) as.character(unlist(values))
