# Checks that only R can make. Everything else is checked once, in the core.

check_flag <- function(x, arg = caller_arg(x), call = caller_env()) {
  if (!rlang::is_bool(x)) {
    abort_spec(x, arg, "TRUE or FALSE", call)
  }
}

check_string <- function(x, arg = caller_arg(x), call = caller_env()) {
  if (!rlang::is_string(x) || is.na(x)) {
    abort_spec(x, arg, "a single string", call)
  }
}

# An argument that has no default and was left out.
check_given <- function(x, arg = caller_arg(x), call = caller_env()) {
  if (missing(x)) {
    abort_gpukeras(
      sprintf("`%s` is missing, with no default.", arg), code = "spec", arg = arg, call = call
    )
  }
}

# Returns a model that is alive; loads a model that gpu_run() returned as a file. The core checks
# whether it is a Keras model.
check_model <- function(model, arg = caller_arg(model), call = caller_env()) {
  force(arg)
  check_given(model, arg, call)
  model <- resolve_saved(model, call)
  if (!inherits(model, "python.builtin.object")) {
    abort_spec(model, arg, "a Keras 3 model", call)
  }
  if (is_dead(model)) {
    abort_gpukeras(
      sprintf("`%s` is from another R session: it is gone.", arg),
      code = "model", hint = "Make or load it again.", arg = arg, call = call
    )
  }
  invisible(model)
}

# NA would arrive in Python as TRUE, NaN or -2147483648.
check_no_na_options <- function(options, call = caller_env()) {
  options <- plain_arguments(options, call)
  for (name in names(options)) {
    value <- options[[name]]
    if (is.atomic(value) && anyNA(value) || is.list(value) && anyNA(unlist(value))) {
      abort_gpukeras(
        sprintf("`%s` must be a value, not NA.", name), code = "spec", arg = name, call = call
      )
    }
  }
  options
}

# A list of options, each with a name of its own: of two of one name Python would keep the last.
check_options <- function(x, arg, expected, call = caller_env()) {
  if (!is.null(x) && !(is.list(x) && all(nzchar(rlang::names2(x))))) {
    abort_spec(x, arg, expected, call)
  }
  twice <- names(x)[duplicated(names(x))]
  if (length(twice) > 0) {
    abort_gpukeras(
      sprintf("`%s` has `%s` more than once.", arg, twice[1]),
      code = "spec", hint = "Give each a name of its own.", arg = arg, call = call
    )
  }
  x
}

check_no_dots <- function(..., call = caller_env()) {
  if (...length() > 0) {
    name <- names(list(...))[1] %||% ""
    known <- keras_row_arguments[name]
    abort_gpukeras(
      if (nzchar(name)) sprintf("Unknown argument `%s`.", name) else "An argument has no name.",
      code = "spec", hint = if (is.na(known)) {
        "Arguments after the data are named, and ?gpu_dataset lists them."
      } else {
        sprintf("It is called `%s` here.", known)
      },
      arg = name, call = call
    )
  }
}

abort_spec <- function(x, arg, expected, call) {
  abort_gpukeras(
    sprintf("`%s` must be %s, not %s.", arg, expected, describe(x)),
    code = "spec", arg = arg, call = call
  )
}

is_plain_scalar <- function(x) {
  is.atomic(x) && length(x) == 1 && is.null(dim(x)) && !is.object(x)
}

# Describes a value for an error message by its class and size, not by its data.
describe <- function(x) {
  if (is.null(x)) {
    return("NULL")
  }
  if (is_plain_scalar(x)) {
    text <- is.character(x) && !is.na(x)
    return(if (text) sprintf("\"%s\"", substr(x, 1, 40)) else format(x))
  }
  size <- if (is.null(dim(x))) paste("of length", length(x)) else paste(dim(x), collapse = " x ")
  paste(with_article(kind_of(x)), size)
}

# The first class; of a matrix that is not of numbers the type too.
kind_of <- function(x) {
  kind <- class(x)[1]
  if (kind %in% c("matrix", "array") && !is.numeric(x)) paste(typeof(x), kind) else kind
}

# A noun with its article: "a list", "an array".
with_article <- function(noun) paste(if (grepl("^[aeiou]", noun)) "an" else "a", noun)

check_data_frame <- function(x, arg = caller_arg(x), call = caller_env()) {
  if (missing(x) || !is.data.frame(x)) {
    found <- if (missing(x)) NULL else x
    abort_spec(found, arg, "a data frame", call)
  }
  check_names(x, arg, call)
}

check_names <- function(x, arg = caller_arg(x), call = caller_env()) {
  damaged <- which(is_damaged(names(x)))
  if (length(damaged) > 0) {
    abort_name(damaged[1], x, "is no valid text", "Give it another name.", arg, call)
  }
  twice <- names(x)[duplicated(names(x))]
  if (length(twice) > 0) {
    abort_gpukeras(
      sprintf("`%s` has more than one column `%s`.", arg, twice[1]),
      code = "data", hint = "Give the columns different names.",
      arg = arg, column = twice[1], call = call
    )
  }
}

# Text that no encoding explains. In a C locale validEnc() takes all bytes for text.
is_damaged <- function(text) {
  native <- Encoding(text) == "unknown" & !is.na(text)
  !validEnc(text) | native & is.na(iconv(text, "", "UTF-8"))
}

# Names of columns that a formula uses must be valid names in R code; `...` and `..1` are reserved.
check_formula_names <- function(formula, data, call) {
  used <- all.vars(formula)
  names <- names(data)
  # R spells in escapes what a name of its locale cannot be, so that no column has it.
  foreign <- is.na(iconv(enc2utf8(names), "UTF-8", "")) & !is.na(names)
  foreign <- which(foreign & ("." %in% used | enc2native(names) %in% used))
  if (length(foreign) > 0) {
    abort_name(
      foreign[1], data, "is in letters that this session's locale does not have",
      "Start R with LC_ALL=C.UTF-8, or another locale of UTF-8.", "data", call
    )
  }
  words <- is.na(names) | !nzchar(names) | nchar(names, "bytes") > 10000
  words <- words | grepl("^[.][.]([.]|[0-9]+)$", names)
  meant <- which(words & ("." %in% used | names %in% used))
  if (length(meant) > 0) {
    abort_name(
      meant[1], data, "cannot stand in a formula",
      "Give it another name, or use gpu_dataset(x, y).", "data", call
    )
  }
}

# Shows a name of any length and encoding in at most 40 characters.
abort_name <- function(place, data, problem, hint, arg, call) {
  name <- names(data)[place]
  shown <- iconv(substr(iconv(name, "", "UTF-8", sub = "byte"), 1, 40), "UTF-8", "UTF-8")
  shown <- if (isTRUE(nzchar(shown))) sprintf("\"%s\"", shown) else "empty"
  abort_gpukeras(
    sprintf("The name of column %d of `%s`, %s, %s.", place, arg, shown, problem),
    code = "data", hint = hint, arg = arg, column = place, call = call
  )
}

check_column <- function(column, data, arg = caller_arg(column), call = caller_env()) {
  if (!column %in% names(data)) {
    abort_gpukeras(
      sprintf("`%s` names the column `%s`, which the data frame does not have.", arg, column),
      code = "data", hint = paste0("Columns are ", shorten(names(data), 8), "."),
      arg = arg, column = column, call = call
    )
  }
}

# A dataset whose rows are still in memory.
check_alive <- function(data, call = caller_env()) {
  if (is_dead(data$handle)) {
    abort_gpukeras(
      "This gpu_dataset is from another R session: its rows are gone.",
      code = "data", hint = "Make it again with gpu_dataset().", arg = "data", call = call
    )
  }
  data
}

check_dataset <- function(data, arg = caller_arg(data), call = caller_env()) {
  force(arg)
  data <- resolve_saved(data, call)
  if (!inherits(data, "gpu_dataset")) {
    abort_spec(data, arg, "a gpu_dataset", call)
  }
  check_alive(data, call)
}

# A vector of positional elements: unnamed, or with the names `places` in any order.
as_placed <- function(x, places, arg = caller_arg(x), call = caller_env()) {
  force(arg)
  x <- plain_number(x, arg, call)
  if (is.null(names(x))) {
    return(x)
  }
  if (!setequal(names(x), places) || length(x) != length(places)) {
    abort_gpukeras(
      sprintf("`%s` has the names %s.", arg, shorten(names(x), 4)),
      code = "spec", arg = arg, call = call,
      hint = if (length(places) > 0) {
        sprintf("It holds %s, in this order or by these names.", paste(places, collapse = ", "))
      } else {
        "Its elements are taken by their places: leave the names out."
      }
    )
  }
  unname(x[places])
}
