# Strings for models with a TextVectorization or StringLookup layer, which take them unencoded.

# A character vector or matrix as argument of the core: codes and their levels.
as_strings <- function(x, arg, call) {
  dimensions <- length(dim(x))
  if (dimensions > 2) {
    abort_gpukeras(
      sprintf("`%s` must be a character vector or matrix, not of %d dimensions.", arg, dimensions),
      code = "data", hint = "A row holds a text for each column.", arg = arg, call = call
    )
  }
  texts <- code_values(factor(x, levels = sort(unique(as.vector(x)), method = "radix")))
  rows <- if (is.null(dim(x))) length(x) else nrow(x)
  list(
    kind = "strings", values = matrix(texts$values, rows), levels = texts$levels,
    names = as.list(colnames(x))
  )
}

# The default of `encode` for a model: "none" if it takes texts and the data frame has some, else
# NULL.
encode_for <- function(x, model) {
  if (is.data.frame(x) && any(vapply(x, is.character, NA)) && takes_text(model)) "none"
}

takes_text <- function(model) {
  !is.null(model) && call_core("takes_text", list(model = model))
}

# A character vector as a column of texts, for a model that takes text and with a label for each;
# elsewhere it holds paths, and `y` is the name of a column.
as_text_rows <- function(x, y, model) {
  labelled <- !is.null(y) && !rlang::is_string(y) && NROW(y) == length(x)
  texts <- is.character(x) && is.null(dim(x)) && labelled
  if (texts && takes_text(model)) as.matrix(unname(x)) else x
}
