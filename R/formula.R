# Formulas: which columns are features, which is the label, and how to find them again in new data.

# Splits data by a formula. The formula comes back expanded, as text: it is part of the recipe, so
# that gpu_predict() can evaluate it again in another session.
split_formula <- function(formula, data, env, call = caller_env()) {
  terms <- check_terms(stats::terms(formula, data = data), env, call)
  if (length(stats::formula(terms)) == 3 && rlang::is_call(stats::formula(terms)[[2]], "list")) {
    return(split_outputs(terms, data, env, call))
  }
  frame <- evaluate_terms(terms, data, env, call)
  response <- attr(terms, "response")
  if (response == 0) {
    return(list(x = frame, y = NULL, formula = deparse_one(terms)))
  }
  list(
    x = frame[-response], y = frame[[response]], label = names(frame)[response],
    formula = deparse_one(terms)
  )
}

# The same for `list(price, cut) ~ .`: one label for each output.
split_outputs <- function(terms, data, env, call) {
  labels <- label_calls(stats::formula(terms)[[2]])
  y <- lapply(labels, function(label) {
    only <- stats::terms(stats::as.formula(call("~", label, 1), env = env))
    evaluate_terms(only, data, env, call)[[1]]
  })
  frame <- evaluate_terms(stats::delete.response(terms), data, env, call)
  list(x = frame, y = y, label = "formula", formula = deparse_one(terms))
}

# The feature columns of new data by a recipe's formula; the label is not needed.
apply_formula <- function(formula, data, env, call = caller_env()) {
  terms <- stats::delete.response(stats::terms(stats::as.formula(formula, env = env)))
  evaluate_terms(terms, data, env, call)
}

evaluate_terms <- function(terms, data, env, call) {
  environment(terms) <- env
  wanted <- setdiff(all.vars(terms), names(data))
  if (length(wanted) > 0) {
    # A variable of the session would do today, and be another or gone when a prediction is made.
    abort_gpukeras(
      sprintf("The data lacks the column `%s` that the formula names.", wanted[1]),
      code = "data", hint = "Every variable of the formula must be a column.",
      arg = "data", column = wanted[1], call = call
    )
  }
  lists <- vapply(data, inherits, NA, "POSIXlt") # model.frame() takes vectors only
  data[lists] <- lapply(data[lists], as.POSIXct)
  frame <- stats::model.frame(terms, data, na.action = stats::na.pass)
  learned <- attr(attr(frame, "terms"), "predvars")
  if (!is.null(learned) && !identical(learned, attr(terms, "variables"))) {
    abort_gpukeras(
      "The formula has a term that is computed from the data, such as poly() or scale().",
      code = "data", hint = "Compute that column first.", arg = "formula", call = call
    )
  }
  attr(frame, "terms") <- NULL
  frame
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

# Terms without variables that the formula takes away, such as `b` in `y ~ . - b`.
drop_unused <- function(terms, env, call) {
  variables <- as.list(attr(terms, "variables"))[-1]
  used <- rowSums(as.matrix(attr(terms, "factors"))) > 0
  if (length(attr(terms, "term.labels")) == 0) {
    abort_gpukeras(
      "The formula names no feature.",
      code = "data", hint = "Use `y ~ .` for all columns.", arg = "formula", call = call
    )
  }
  response <- attr(terms, "response")
  label <- if (response > 0) variables[[response]]
  stats::terms(sum_formula(label, variables[used], env))
}

# The formula of a label and its features, none of which is named by text that would need quotes.
sum_formula <- function(label, features, env) {
  right <- Reduce(function(one, two) call("+", one, two), features)
  formula <- if (is.null(label)) call("~", right) else call("~", label, right)
  stats::as.formula(formula, env = env)
}

deparse_one <- function(terms) {
  paste(deparse(stats::formula(terms), width.cutoff = 500L), collapse = " ")
}
