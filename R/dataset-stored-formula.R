# Formulas out of files are data: a sum of columns and of calls of functions on a closed list, which
# see these functions and the columns and nothing else. A formula that this session's user has
# written is free as long as the session lasts: it is known by a mark behind it.

# Functions that read nothing but their arguments, and neither write, start nor look up anything.
# None makes much of little, as rep() and seq() do.
closed_names <- c(
  "(", "+", "-", "*", "/", "^", "%%", "%/%", "%in%",
  "==", "!=", "<", "<=", ">", ">=", "!", "&", "|", "xor",
  "abs", "sign", "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p",
  "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
  "round", "signif", "floor", "ceiling", "trunc", "pmin", "pmax", "ifelse",
  "is.na", "is.nan", "is.finite", "is.infinite",
  "as.numeric", "as.double", "as.integer", "as.logical", "as.character",
  "factor", "as.factor", "ordered", "as.ordered", "cut", "I", "c", "cbind",
  "tolower", "toupper", "nchar", "substr", "startsWith", "endsWith"
)

# Between terms these mean something else than between numbers.
term_operators <- c("+", "-", "*", "/", "^", "%in%", "|", "(")

most_nested <- 100 # calls in calls of one term
most_bytes <- 2^24 # of a formula: those of tens of thousands of columns are shorter

# All that a formula out of a file can reach: neither R's other functions nor this session.
closed_functions <- function() {
  # model.frame() evaluates `list(column, call)`; terms themselves may not say it.
  functions <- mget(c(closed_names, "list"), envir = baseenv())
  functions$cut <- cut_at
  env <- list2env(functions, parent = emptyenv())
  lockEnvironment(env, bindings = TRUE)
  env
}

# cut() of a number of breaks, or of "weeks", looks at all rows, and can make any number of breaks.
cut_at <- function(x, breaks, ...) {
  if (length(breaks) < 2) {
    abort_gpukeras(
      "cut() in a formula needs its breaks: a number of them depends on the other rows.",
      code = "data", hint = "Give them as `cut(x, c(0, 1, 2))`.", arg = "formula", call = NULL
    )
  }
  cut(x, breaks, ...)
}

# The labels and features of a formula: calls and names. `labels` are those of list(price, cut), or
# a single one, or none.
formula_parts <- function(formula) {
  label <- if (length(formula) == 3) formula[[2]]
  labels <- if (rlang::is_call(label, "list")) as.list(label)[-1] else list(label)
  features <- split_sum(formula[[length(formula)]])
  list(label = label, labels = if (!is.null(label)) labels, features = features)
}

# The terms between the signs of a sum, which may be longer than R can recurse.
split_sum <- function(term) {
  parts <- list()
  while (rlang::is_call(term, "+", n = 2)) {
    parts[[length(parts) + 1]] <- term[[3]]
    term <- term[[2]]
  }
  rev(c(parts, list(term)))
}

# Reading ------------------------------------------------------------------------------------------

# The parts of a formula that came with a model, a dataset or a recipe, and where its calls are
# evaluated.
read_formula <- function(text, call = caller_env()) {
  parts <- formula_parts(parse_formula(text, call))
  own <- the$formulas[[text]]
  foreign <- if (is.null(own)) find_foreign_part(parts)
  if (!is.null(foreign)) {
    abort_gpukeras(
      sprintf("The formula of the recipe holds %s, which no formula out of a file may.", foreign),
      code = "data", arg = "recipe", found = foreign, call = call,
      hint = paste(
        "Give rows as gpu_dataset(formula, data = , recipe = ), with the formula written out:",
        "what you write yourself may call anything."
      )
    )
  }
  parts$env <- own %||% closed_functions()
  parts
}

# Nothing is evaluated. What is nested too deeply for R's parser is an error of its own; pipes are
# not, as it looks through them by recursion.
parse_formula <- function(text, call) {
  readable <- rlang::is_string(text) && !is.na(text) && nchar(text, "bytes") <= most_bytes &&
    lengths(regmatches(text, gregexpr("|>", text, fixed = TRUE, useBytes = TRUE))) <= most_nested
  code <- if (readable) tryCatch(str2lang(text), error = function(condition) NULL)
  if (!rlang::is_call(code, "~", n = NULL) || !length(code) %in% 2:3) {
    abort_gpukeras(
      "The formula of the recipe is damaged: it is not a formula.",
      code = "data", hint = "Make the recipe again by gpu_recipe().", arg = "recipe", call = call
    )
  }
  code
}

# What is not on the closed list, in words; NULL if there is nothing.
find_foreign_part <- function(parts) {
  found <- unlist(lapply(parts$features, find_foreign_feature))
  if (length(found) > 0) {
    return(found[1])
  }
  for (term in c(parts$labels, parts$features)) {
    found <- if (missing(term)) "an empty argument" else find_foreign(term)
    if (!is.null(found)) {
      return(found)
    }
  }
}

find_foreign_feature <- function(feature) {
  if (rlang::is_call(feature, term_operators)) {
    sprintf("`%s` between its terms", as.character(feature[[1]]))
  } else if (!is.name(feature) && !is.call(feature)) {
    "a term that is no column"
  }
}

find_foreign <- function(term, depth = 0) {
  if (depth > most_nested) {
    return(sprintf("a term of more than %d calls in each other", most_nested))
  }
  if (!is.call(term)) {
    return(find_foreign_value(term))
  }
  if (!is.name(term[[1]]) || !as.character(term[[1]]) %in% closed_names) {
    return(describe_head(term[[1]]))
  }
  for (part in as.list(term)[-1]) {
    found <- if (missing(part)) "an empty argument" else find_foreign(part, depth + 1)
    if (!is.null(found)) {
      return(found)
    }
  }
}

find_foreign_value <- function(value) {
  if (is.name(value)) {
    if (grepl("^[.][.]([.]|[0-9]+)$", value)) sprintf("`%s`", as.character(value))
  } else if (!is.null(value) && !(is.atomic(value) && is.null(attributes(value)))) {
    "a value that is no constant"
  }
}

describe_head <- function(head) {
  spelt <- rlang::is_call(head, c("::", ":::"), n = 2) && all(vapply(as.list(head), is.name, NA))
  if (!is.name(head) && !spelt) {
    return("a call of something else than a named function")
  }
  name <- if (spelt) deparse(head) else as.character(head)
  sprintf("`%s%s`", substr(name, 1, 60), if (spelt || make.names(name) == name) "()" else "")
}

# Keeping ------------------------------------------------------------------------------------------

# A formula that the user has written: its text for the recipe, and where its calls are evaluated.
# One that says no more than those out of files may, by functions that are R's own, is evaluated as
# they are. Others get a mark, so that this session finds their functions again; no file knows it.
keep_formula <- function(parts, text, env) {
  used <- unique(unlist(lapply(c(parts$labels, parts$features), called_in)))
  own <- find_functions(used, env)
  if (is.null(find_foreign_part(parts)) && identical(own, find_functions(used, baseenv()))) {
    return(list(text = text, env = closed_functions()))
  }
  mark <- rlang::hash(list(tempfile(), Sys.time()))
  for (known in names(the$formulas)) {
    held <- as.list(the$formulas[[known]], sorted = TRUE)
    if (formula_text(known) == text && identical(held, own)) {
      return(list(text = known, env = env))
    }
  }
  marked <- paste0(text, " #", mark)
  remember_formula(marked, own)
  list(text = marked, env = env)
}

mark_pattern <- " #[0-9a-f]{32}$"

# The functions of a formula that the user has written, here or in a process of gpu_run(). Of where
# it was written nothing else is kept, as that may be large.
remember_formula <- function(marked, functions) {
  the$formulas[[marked]] <- list2env(functions, parent = globalenv())
}

# What another process of this session's has to know of a recipe's formula.
hold_formula <- function(formula) {
  own <- if (nzchar(formula %||% "")) the$formulas[[formula]]
  if (!is.null(own)) list(text = formula, functions = as.list(own))
}

find_functions <- function(names, env) {
  found <- lapply(names, get0, envir = env, mode = "function")
  kept <- !vapply(found, is.null, NA)
  found <- rlang::set_names(found[kept], names[kept])
  found[order(names(found))]
}

# Names of the functions that a term calls.
called_in <- function(term) {
  if (!is.call(term)) {
    return(character())
  }
  names <- if (is.name(term[[1]])) as.character(term[[1]])
  for (part in as.list(term)) {
    if (!missing(part)) names <- c(names, called_in(part))
  }
  unique(names)
}

# A formula's text as it is shown.
formula_text <- function(formula) sub(mark_pattern, "", formula)
