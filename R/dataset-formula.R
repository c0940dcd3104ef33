# Formulas: the features and labels that they name, and how these are computed for new data.

#' @section Formulas:
#' `gpu_dataset(y ~ a * b, data = d)` takes formulas as `lm()` does, for data frames:
#'
#' * **Columns and calls.** `log(x)`, `I(x^2)`, `factor(g)`; `.` stands for all other columns, and
#'   `. - g` for all of them but `g`. Every variable must be a column of `data`. A call that gives a
#'   matrix of numbers becomes several columns, named as `model.matrix()` names them.
#' * **Interactions.** `a:b`, `a * b`, `(a + b)^2`, `a %in% b` and `a / b`. Numbers are multiplied.
#'   Of a factor, text or logical `f` and a number `x`, there is one column `f=<level>:x` for each
#'   level. Of factors alone, one factor with all pairs of levels, encoded as `encode` says. There
#'   are no contrasts: every level has a column, which spans the same space. Levels of new rows that
#'   training did not see are an error.
#' * **Terms that learn from the data.** `poly()`, `splines::ns()`, `splines::bs()` and `scale()`
#'   learn from the training rows (with `na = "drop"`, from all rows), and new rows are computed
#'   from what was learned, as `predict()` of an `lm()` does. `factor(x, labels = )` learns its
#'   levels. Functions of other packages with a method of `makepredictcall()` work too, but in the
#'   same session only. The columns are then standardised as other numbers are.
#' * **Terms that depend on the other rows** otherwise are an error, as new rows would change them:
#'   `I(x - mean(x))`, `cut(x, 3)`, `rank(x)`, `log(scale(x))`. Each call, also of labels, offsets
#'   and weights, is computed on up to 1000 rows and on parts of them, which must agree.
#' * **`offset(log(exposure))`** is an input of its own, for a model to add to its linear
#'   predictor: it is neither standardised nor imputed. The inputs are `"features"` and `"offset"`,
#'   or those of `inputs` and then `"offset"`; several offsets are summed. As in `lm()`, `.`
#'   includes the columns that an offset uses. A missing offset in new rows is an error.
#' * **`strata(sex)`** of `survival` is for the family `"cox"`: each stratum has its own risk sets
#'   and its own baseline hazard, as in `coxph()`. It is an input named `"strata"`, the last one,
#'   with the stratum's number. Several columns, `strata(a, b)`, make the strata that the rows have.
#'   The other arguments of `strata()` are an error, and so are strata that training did not see.
#' * **Labels.** `survival::Surv(time, status) ~ .` makes a matrix with the columns `time` and
#'   `status`, of right-censored times above 0; `y` takes such an object too.
#'   `cbind(successes, failures) ~ .` makes a matrix with these columns. An ordered factor keeps its
#'   order in the recipe and in predicted classes.
#' * **Weights.** `weights = w` is looked for in `data` first, then where you call `gpu_dataset()`;
#'   `weights = "w"` names the column. As in `lm()`, `.` includes the column: write `. - w`. Columns
#'   are remembered, also in a call such as `w / 2`: rows with labels that come to [gpu_evaluate()],
#'   [gpu_summary()], [gpu_importance()], or [gpu_fit()] as validation rows, are weighed by theirs,
#'   and a missing column is an error. A vector that is no column is not remembered: new rows then
#'   weigh 1 unless they are given as `list(x, y, weights)`.
#' * **The intercept** makes no difference, as [gpu_mlp()]'s layers have a bias: `y ~ x` and
#'   `y ~ 0 + x` are the same.
#'
#' `inputs` may name a term, such as `"poly(x, 3)"`, for all of its columns. What other packages
#' take for more than its values is an error that names it: random effects such as `(1 | g)` or
#' `frailty(g)`, smooth terms such as `s(x)`, `te(x, z)` or `pspline(x)`, `cluster(g)`, `ridge(x)`,
#' `tt(x)`, and contrasts, `C(f, contr.sum)`. A formula for files or databases can only name
#' columns.
#' @section Factors and imbalanced classes:
#' A factor, ordered or not, or a text is a 0/1 column for each level, up to 1000 levels; beyond
#' that an error says so. For more levels, `encode = "codes"` is one column of codes from 0, in the
#' order of the levels, and `encode = "hash"` is `hash_bins` columns.
#'
#' If some classes are rare, `class_weight = "balanced"` gives the training rows of all classes the
#' same total weight, for labels of a formula too; `weights` are multiplied by it.
#' @rdname gpu_dataset
#' @export
gpu_dataset.formula <- function(x, data, ..., weights = NULL, image = NULL, classes = NULL) { # nolint
  weights <- rlang::enquo(weights)
  if (!missing(data) && is.character(data) && is.null(image)) {
    return(formula_files(x, data, ..., weights = rlang::eval_tidy(weights)))
  }
  if (!missing(data) && is_row_stream(data)) {
    columns <- formula_columns(x, rlang::current_env())
    weights <- rlang::eval_tidy(weights)
    return(gpu_dataset(data, columns$label, ..., columns = columns$features, weights = weights))
  }
  check_data_frame(data)
  taken <- take_weights(weights, data)
  formula_dataset(
    x, data, ...,
    weights = taken$values, weigh = taken$term, image = image, classes = classes
  )
}

# The dataset of a formula and a data frame. `weigh` is the term of the weights, if columns of new
# rows give them too; without weights, the recipe's term is taken.
formula_dataset <- function(x, data, ..., weights = NULL, weigh = NULL, image = NULL,
                            classes = NULL, inputs = NULL, recipe = NULL, validation = 0,
                            seed = NULL, call = caller_env()) {
  record <- recipe_record(recipe, call)
  seed <- seed %||% draw_seed()
  rows <- learning_rows(x, data, validation, seed, list(...)[["na"]], call)
  known <- known_terms(record$formula, call)
  parts <- split_formula(x, data, environment(x), call, known, rows, weigh)
  check_same_labels(parts$formula, record$formula, call)
  weights <- weights %||% recipe_weights(record$formula, data, call)
  inputs <- formula_inputs(inputs, parts, recipe)
  image <- image %||% image_column(record)
  if (!is.null(image)) {
    check_image_column(image, names(parts$x), call)
    check_no_offset(parts, call)
    return(image_dataset(
      parts, image, classes, ...,
      weights = weights, inputs = inputs, recipe = recipe, validation = validation, seed = seed,
      arg = "data"
    ))
  }
  features <- as_features(parts$x, "data", call, zones = zones_of(recipe))
  features <- mark_offset(features, name_offset(parts$offsets))
  source <- new_source(
    mark_strata(features, parts$strata),
    if (!is.null(parts$y)) as_labels(parts$y, parts$label, call),
    scale = TRUE, formula = parts$formula, arg = "data"
  )
  gpu_dataset.default(
    source, ...,
    weights = weights, inputs = inputs, recipe = recipe, validation = validation, seed = seed
  )
}

# Labels that are computed must be computed as `recipe` has them: it takes all numbers as they are.
check_same_labels <- function(text, known, call) {
  if (is_recipe_key(known) || !nzchar(known %||% "")) {
    return(invisible())
  }
  labels <- written_labels(text, call)
  trained <- written_labels(known, call)[names(labels) %||% seq_along(labels)]
  other <- which(as.logical(Map(is_other_label, labels, trained)))
  if (length(other) > 0) {
    abort_gpukeras(
      sprintf(
        "The formula has the label `%s` where `recipe` has `%s`.",
        name_term(labels[[other[1]]]), name_term(trained[[other[1]]])
      ),
      code = "data", hint = "Write it as `recipe` has it, so that labels mean the same.",
      arg = "formula", call = call
    )
  }
}

# The labels of a formula, one for each output.
written_labels <- function(text, call) {
  label <- formula_parts(parse_formula(text, call))$label
  label_calls(label) %||% list(label)[!is.null(label)]
}

is_other_label <- function(label, trained) {
  !is.null(trained) && !identical(label, trained) && (is.call(label) || is.call(trained))
}

# Weights as lm() takes them: a column of the data, a call on its columns, or the user's own vector.
# As with files, a string names a column. Returns their values, and the term that gives those of new
# rows; NULL for the user's own vector, which new rows do not have.
take_weights <- function(weights, data, call = caller_env()) {
  code <- rlang::quo_get_expr(weights)
  used <- data[intersect(variables_in(code), names(data))]
  used <- plain_frame(used, call = call)
  values <- tryCatch(rlang::eval_tidy(weights, used), simpleError = function(condition) {
    abort_gpukeras(
      paste0("`weights` cannot be computed: ", sub("[.]?\\s*$", ".", said_by(condition))),
      code = "data", hint = "Weights are a vector, or the name of a column of `data`.",
      arg = "weights", call = call
    )
  })
  if (rlang::is_string(values)) {
    check_column(values, data, "weights", call)
    return(list(values = data[[values]], term = as.name(values)))
  }
  single <- ncol(used) > 0 && !is.null(values) && !rlang::is_bare_list(values)
  code <- plain_pronouns(code)
  list(values = values, term = if (single) close_weights(code, weights, data, call))
}

# The term of weights with columns alone: single numbers of the session are written out.
close_weights <- function(code, weights, data, call) {
  for (name in setdiff(variables_in(code), names(data))) {
    value <- get0(name, rlang::quo_get_env(weights))
    if (!is_plain_scalar(value)) {
      abort_gpukeras(
        sprintf("`weights` uses columns of `data` and `%s`, which new rows do not have.", name),
        code = "data", hint = "Compute the weights as a column of `data` first.",
        arg = "weights", call = call
      )
    }
    code <- do.call(substitute, list(code, stats::setNames(list(value), name)))
  }
  code
}

# `.data$w` is the column `w`.
plain_pronouns <- function(code) {
  if (rlang::is_call(code, c("$", "[["), n = 2) && identical(code[[2]], quote(.data))) {
    return(as.name(as.character(code[[3]])))
  }
  if (is.call(code)) code[] <- lapply(as.list(code), plain_pronouns)
  code
}

# The variables of a call; in `d$w`, `w` is none.
variables_in <- function(code) {
  code <- plain_pronouns(code)
  if (rlang::is_call(code, c("$", "@"), n = 2)) {
    return(variables_in(code[[2]]))
  }
  if (is.call(code)) unlist(lapply(as.list(code)[-1], variables_in)) else all.vars(code)
}

# The weights of rows by the term that a recipe's formula has; NULL without one.
recipe_weights <- function(text, data, call) {
  if (!is_recipe_key(text) && grepl(".weights(", text %||% "", fixed = TRUE)) {
    take_row_weights(read_formula(text, call), data, call)
  }
}

take_row_weights <- function(parts, data, call) {
  if (!is.null(parts$weights)) take_term(parts$weights, data, parts$env, call, "weights")
}

# Splitting ----------------------------------------------------------------------------------------

# Splits data by a user's formula. What is returned as text is part of the recipe, so that
# gpu_predict() can evaluate the formula again, in another session too: `.` is expanded, and learned
# numbers are written out. `known` has learned terms of a recipe, see known_terms(); `rows` are the
# numbers of the rows to learn from, or NULL for all; `weigh` is the term of the weights, or NULL.
split_formula <- function(formula, data, env, call = caller_env(), known = list(), rows = NULL,
                          weigh = NULL) {
  check_formula_names(formula, data, call)
  parts <- expand_dot(formula, data) %||% expand_terms(find_terms(formula, data, call), env, call)
  check_some_features(parts, call)
  parts["weights"] <- list(weigh)
  parts <- settle_terms(parts, data, env, known, rows, call)
  check_rowwise(parts, data, call)
  kept <- keep_formula(parts, write_formula(parts), parts$env)
  parts$env <- kept$env
  c(split_parts(parts, data, call), parts[c("offsets", "strata")], formula = kept$text)
}

# The parts of `y ~ .`, without terms(), which cannot handle tens of thousands of columns. NULL for
# other formulas.
expand_dot <- function(formula, data) {
  parts <- formula_parts(formula)
  named <- all.vars(parts$label)
  vector <- is.null(parts$label) || is.name(parts$label) || is.call(parts$label)
  if (!identical(parts$features, list(quote(.))) || "." %in% named || !vector) {
    return(NULL)
  }
  parts$features <- lapply(setdiff(names(data), named), as.name)
  parts
}

# The text of a formula's parts.
write_formula <- function(parts) {
  offsets <- lapply(parts$offsets, function(term) call("offset", term))
  weights <- if (!is.null(parts$weights)) list(call(".weights", parts$weights))
  right <- vapply(c(parts$features, offsets, parts$strata, weights), deparse_term, "")
  label <- if (!is.null(parts$label)) paste(deparse_term(parts$label), "~ ") else "~"
  paste0(label, paste(right, collapse = " + "))
}

# A term as R reads it again. Numbers that 15 digits do not tell, as learned ones, are written as
# hexadecimal fractions.
deparse_term <- function(term) {
  write <- function(...) {
    control <- c("keepNA", "keepInteger", "niceNames", ...)
    lines <- deparse(term, width.cutoff = 500L, backtick = TRUE, control = control)
    paste(lines, collapse = " ")
  }
  text <- write()
  if (is.name(term) || identical(str2lang(text), term)) text else write("hexNumeric")
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

# The feature columns alone; the label is not needed. The offset and the number of the stratum, if
# there are such, are the last.
take_features <- function(parts, data, call = caller_env()) {
  columns <- lapply(parts$features, take_feature, data, parts$env, call)
  offset <- if (length(parts$offsets) > 0) list(take_offset(parts, data, call))
  strata <- if (length(parts$strata) > 0) list(take_strata(parts, data, call))
  frame <- as.list(unlist(c(columns, offset, strata), recursive = FALSE))
  frame <- structure(frame, class = "data.frame", row.names = attr(data, "row.names"))
  attr(frame, "spread") <- name_spread(parts$features[lengths(columns) > 1], columns)
  frame
}

# The columns of the terms that have become several, by the term; NULL if none has.
name_spread <- function(features, columns) {
  if (length(features) > 0) {
    stats::setNames(
      lapply(columns[lengths(columns) > 1], names), vapply(features, name_term, "")
    )
  }
}

# The columns of one feature, by name: several of a matrix, as model.matrix() names them.
take_feature <- function(feature, data, env, call) {
  name <- name_term(feature)
  if (is_crossed(feature)) {
    return(take_crossed(split_crossed(feature), name, data, env, call))
  }
  spread_matrix(take_term(feature, data, env, call), name)
}

spread_matrix <- function(values, name) {
  numbers <- is.numeric(values) || is.logical(values)
  if (!is.matrix(values) || !numbers || inherits(values, "Surv")) {
    return(stats::setNames(list(values), name))
  }
  own <- if (ncol(values) > 1) colnames(values) %||% seq_len(ncol(values))
  columns <- lapply(seq_len(ncol(values)), function(place) as.vector(values[, place]))
  stats::setNames(columns, paste0(name, own))
}

# A term as the user wrote it.
name_term <- function(term) {
  if (is.name(term)) {
    as.character(term)
  } else if (is_learned(term)) {
    term[[2]]
  } else if (is_crossed(term)) {
    paste(vapply(split_crossed(term), name_term, ""), collapse = ":")
  } else {
    paste(deparse(term, 500L), collapse = " ")
  }
}

# The values of a column, or of a call on columns, for each row. `arg` is the argument with the
# term.
take_term <- function(term, data, env, call, arg = "formula") {
  code <- if (is_learned(term)) term[[3]] else term
  check_term(code, data, call, arg)
  named <- if (is.name(code)) data[[as.character(code)]]
  values <- named %||% evaluate_term(code, data, env, call, name_term(term))[[1]]
  if (learned_labels(term)) check_labelled(term, values, data, env, call)
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

check_term <- function(term, data, call, arg = "formula") {
  used <- all.vars(term)
  lacking <- used[!used %in% names(data)] # setdiff() would copy all names for each term
  if (length(lacking) > 0) {
    # A variable of the session may have changed or disappeared when a prediction is made.
    abort_gpukeras(
      if (arg == "weights") {
        sprintf("The data lacks the column `%s` of the training rows' weights.", lacking[1])
      } else if (is.function(get0(lacking[1], mode = "function"))) {
        sprintf("The formula names `%s`: no column of the data, but a function.", lacking[1])
      } else {
        sprintf("The data lacks the column `%s` that the formula names.", lacking[1])
      },
      code = "data", hint = if (arg == "weights") {
        "Add the column, or give the rows as list(x, y, weights)."
      } else {
        "Every variable of the formula must be a column."
      },
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

# Evaluates a call as the left side of a formula, where operators are arithmetic. Returns R's model
# frame, whose terms have what the call learned from the data.
evaluate_term <- function(term, data, env, call, name = name_term(term)) {
  terms <- stats::terms(stats::as.formula(base::call("~", term, 1), env = env))
  used <- data[all.vars(term)]
  used <- plain_frame(used, call = call)
  lists <- vapply(used, inherits, NA, "POSIXlt") # model.frame() takes vectors only
  used[lists] <- lapply(used[lists], as.POSIXct)
  fail <- function(condition) abort_term(name, used, condition, call)
  tryCatch(
    stats::model.frame(terms, used, na.action = stats::na.pass),
    simpleError = fail, packageNotFoundError = fail
  )
}

# R's own error names no column, neither for a list column nor for a call that fails.
abort_term <- function(name, used, condition, call) {
  list <- names(used)[vapply(used, is.list, NA)][1]
  abort_gpukeras(
    sprintf(
      "The term `%s` of the formula cannot be computed: %s.", name,
      sub("[.]?\\s*$", "", said_by(condition))
    ),
    code = "data", arg = "formula", column = if (!is.na(list)) list, call = call,
    hint = if (is.na(list)) "" else sprintf("The column `%s` is %s.", list, describe(used[[list]]))
  )
}

check_some_features <- function(parts, call) {
  if (length(parts$features) == 0) {
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
