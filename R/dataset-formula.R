# Formulas: the features and labels that they name, and how these are computed for new data.

# Splits data by a user's formula. The expanded formula is returned as text: it is part of the
# recipe, so that gpu_predict() can evaluate it again, in another session too.
split_formula <- function(formula, data, env, call = caller_env()) {
  check_formula_names(formula, data, call)
  parts <- expand_dot(formula, data) %||% {
    terms <- check_terms(find_terms(formula, data, call), env, call)
    c(formula_parts(stats::formula(terms)), text = deparse_one(terms))
  }
  check_some_features(parts$features, call)
  kept <- keep_formula(parts, parts$text, env)
  parts$env <- kept$env
  c(split_parts(parts, data, call), formula = kept$text)
}

# The parts and the text of `y ~ .`, without terms(), which cannot handle tens of thousands of
# columns. NULL for other formulas.
expand_dot <- function(formula, data) {
  parts <- formula_parts(formula)
  named <- all.vars(parts$label)
  vector <- is.null(parts$label) || is.name(parts$label) || is.call(parts$label)
  if (!identical(parts$features, list(quote(.))) || "." %in% named || !vector) {
    return(NULL)
  }
  parts$features <- lapply(setdiff(names(data), named), as.name)
  label <- if (!is.null(parts$label)) paste(deparse_term(parts$label), "~ ") else "~"
  features <- vapply(parts$features, deparse_term, "")
  c(parts, text = paste0(label, paste(features, collapse = " + ")))
}

deparse_term <- function(term) {
  paste(deparse(term, width.cutoff = 500L, backtick = TRUE), collapse = " ")
}

# terms() makes a matrix of columns by columns, and overflows R's stack from 20,000 on.
widest_terms <- 5000L

find_terms <- function(formula, data, call) {
  if ("." %in% all.vars(formula) && ncol(data) > widest_terms) {
    abort_gpukeras(
      sprintf(
        "The formula changes a `.` that stands for %d columns: R cannot expand it.", ncol(data)
      ),
      code = "data", hint = "Remove columns from `data` and use `y ~ .`, or use gpu_dataset(x, y).",
      arg = "formula", call = call
    )
  }
  stats::terms(formula, data = data)
}

# Features and labels by the parts of a formula. `label` names the labels in messages.
split_parts <- function(parts, data, call = caller_env()) {
  x <- take_features(parts, data, call)
  several <- label_calls(parts$label)
  if (!is.null(several)) {
    y <- lapply(several, take_term, data, parts$env, call)
    return(list(x = x, y = y, label = "formula"))
  }
  if (is.null(parts$label)) {
    return(list(x = x, y = NULL))
  }
  y <- take_term(parts$label, data, parts$env, call)
  list(x = x, y = y, label = name_term(parts$label))
}

# The feature columns alone; the label is not needed.
take_features <- function(parts, data, call = caller_env()) {
  frame <- lapply(parts$features, take_term, data, parts$env, call)
  names(frame) <- vapply(parts$features, name_term, "")
  structure(frame, class = "data.frame", row.names = attr(data, "row.names"))
}

name_term <- function(term) {
  if (is.name(term)) as.character(term) else paste(deparse(term, 500L), collapse = " ")
}

# The values of a column, or of a call on columns, for each row.
take_term <- function(term, data, env, call) {
  check_term(term, data, call)
  named <- if (is.name(term)) data[[as.character(term)]]
  values <- named %||% evaluate_term(term, data, env, call)
  if (NROW(values) != nrow(data)) {
    abort_gpukeras(
      sprintf(
        "The term `%s` of the formula gives %d values for %d rows.",
        name_term(term), NROW(values), nrow(data)
      ),
      code = "data", arg = "formula", call = call
    )
  }
  values
}

check_term <- function(term, data, call) {
  used <- all.vars(term)
  lacking <- used[!used %in% names(data)] # setdiff() would copy all names for each term
  if (length(lacking) > 0) {
    # A variable of the session may have changed or disappeared when a prediction is made.
    abort_gpukeras(
      sprintf("The data lacks the column `%s` that the formula names.", lacking[1]),
      code = "data", hint = "Every variable of the formula must be a column.",
      arg = "data", column = lacking[1], call = call
    )
  }
  code <- Filter(function(name) is.function(data[[name]]), used) # the formula could call it
  if (length(code) > 0) {
    abort_gpukeras(
      sprintf("The column `%s` is a function.", code[1]),
      code = "data", arg = "data", column = code[1], call = call
    )
  }
}

# Evaluates a call as the left side of a formula, where operators are arithmetic.
evaluate_term <- function(term, data, env, call) {
  terms <- stats::terms(stats::as.formula(base::call("~", term, 1), env = env))
  used <- data[all.vars(term)]
  lists <- vapply(used, inherits, NA, "POSIXlt") # model.frame() takes vectors only
  used[lists] <- lapply(used[lists], as.POSIXct)
  frame <- tryCatch(
    stats::model.frame(terms, used, na.action = stats::na.pass),
    simpleError = function(condition) abort_term(term, used, condition, call)
  )
  learned <- attr(attr(frame, "terms"), "predvars")
  if (!is.null(learned) && !identical(learned, attr(terms, "variables"))) {
    abort_gpukeras(
      "The formula has a term that is computed from the data, such as poly() or scale().",
      code = "data", hint = "Compute that column first.", arg = "formula", call = call
    )
  }
  frame[[1]]
}

# R's own error names no column, neither for a list column nor for a call that fails.
abort_term <- function(term, used, condition, call) {
  list <- names(used)[vapply(used, is.list, NA)][1]
  abort_gpukeras(
    sprintf(
      "The term `%s` of the formula cannot be computed: %s.", name_term(term),
      sub("[.]?\\s*$", "", said_by(condition))
    ),
    code = "data", arg = "formula", column = if (!is.na(list)) list, call = call,
    hint = if (is.na(list)) "" else sprintf("The column `%s` is %s.", list, describe(used[[list]]))
  )
}

check_terms <- function(terms, env, call) {
  if (any(attr(terms, "order") > 1) || !is.null(attr(terms, "offset"))) {
    abort_gpukeras(
      "The formula has an interaction or an offset.",
      code = "data",
      hint = "Name the columns only: a network learns interactions by itself.",
      arg = "formula", call = call
    )
  }
  drop_unused(terms, env, call)
}

# Drops variables that the formula removes, such as `b` in `y ~ . - b`.
drop_unused <- function(terms, env, call) {
  variables <- as.list(attr(terms, "variables"))[-1]
  used <- rowSums(as.matrix(attr(terms, "factors"))) > 0
  check_some_features(attr(terms, "term.labels"), call)
  response <- attr(terms, "response")
  label <- if (response > 0) variables[[response]]
  stats::terms(sum_formula(label, variables[used], env))
}

check_some_features <- function(features, call) {
  if (length(features) == 0) {
    abort_gpukeras(
      "The formula names no feature.",
      code = "data", hint = "Use `y ~ .` for all columns.", arg = "formula", call = call
    )
  }
}

# Builds a formula from symbols and calls, so that no name needs quotes.
sum_formula <- function(label, features, env) {
  right <- Reduce(function(one, two) call("+", one, two), features)
  formula <- if (is.null(label)) call("~", right) else call("~", label, right)
  stats::as.formula(formula, env = env)
}

deparse_one <- function(terms) {
  paste(deparse(stats::formula(terms), width.cutoff = 500L), collapse = " ")
}
