# Terms that learn numbers from the training rows, such as poly(x, 3): R's makepredictcall() gives
# the call with these numbers as arguments, and the recipe keeps it, as lm() keeps it in its terms.
#
# In a recipe's formula such a term is `.learned("poly(x, 3)", poly(x, 3, coefs = list(...)))`: what
# the user wrote, which names its columns, and what is evaluated. A category in an interaction is
# `.learned("b", factor(b, levels = c("u", "v")))`.

is_learned <- function(term) {
  called <- rlang::is_call(term, ".learned", n = 2, ns = "")
  called && is.character(term[[2]]) && !is_empty(term[[3]])
}

# Whether an argument is left out, as in x[, 1].
is_empty <- function(argument) missing(argument) || identical(argument, rlang::missing_arg())

new_learned <- function(name, code) call(".learned", name, code)

# Whether a learned term is a category with its levels.
has_levels <- function(term) {
  is_learned(term) && rlang::is_call(term[[3]], "factor", n = 2, ns = "") &&
    identical(names(term[[3]]), c("", "", "levels")) && !is_empty(term[[3]][[2]])
}

# The values of a category, which may have no other levels than in training.
take_levels <- function(term, data, env, call) {
  values <- as.character(take_term(new_learned(term[[2]], term[[3]][[2]]), data, env, call))
  levels <- as.character(eval(term[[3]]$levels, baseenv()))
  new <- setdiff(values[!is.na(values)], levels)
  if (length(new) > 0) {
    shown <- paste(utils::head(new, 5), collapse = ", ")
    abort_gpukeras(
      sprintf(
        "Column `%s` of `data` has levels that training did not see: %s%s.", name_term(term), shown,
        if (length(new) > 5) ", ..." else ""
      ),
      code = "data", hint = "Drop those rows, or train with data that has them.",
      arg = "data", column = name_term(term), levels = new, call = call
    )
  }
  factor(values, levels)
}

# Learning -----------------------------------------------------------------------------------------

# The numbers of the rows from which terms learn: the training rows, which the core will draw with
# the same seed. NULL is all rows: without calls, and if rows with missing values are dropped first.
learning_rows <- function(formula, data, validation, seed, na, call) {
  calls <- setdiff(called_in(formula[[length(formula)]]), c("+", "-", ":", "*", "^", "%in%"))
  if (identical(validation, 0) || length(calls) == 0 || identical(na, "drop")) {
    return(NULL)
  }
  draw_parts(nrow(data), validation, seed, call)[[1]]
}

# The parts with what their terms learn. Calls such as splines::ns() are spelled without `::`, and
# `env` finds their functions.
settle_terms <- function(parts, data, env, known, rows, call) {
  used <- unlist(lapply(c(parts$labels, parts$features, parts$offsets), called_in))
  spelled <- intersect(used, packaged_calls())
  if (length(spelled) > 0) {
    env <- bind_packaged(new.env(parent = env), sub(".*::", "", spelled))
  }
  for (term in c(parts$labels, parts$offsets)) check_unlearned(term, env, call)
  learn <- function(feature) settle_feature(feature, data, env, known, rows, call)
  label <- spell_plainly(parts$label)
  settled <- new_parts(label, lapply(parts$features, learn), parts$offsets)
  if (rlang::is_call(label, "list")) {
    settled$labels <- lapply(settled$labels, spell_plainly)
    settled$label <- as.call(c(quote(list), settled$labels))
  }
  settled$env <- env
  settled
}

packaged_calls <- function(packages = packaged_functions) {
  paste0(rep(names(packages), lengths(packages)), "::", unlist(packages))
}

spell_plainly <- function(term) {
  if (is.call(term) && is_namespaced(term[[1]]) && name_term(term[[1]]) %in% packaged_calls()) {
    term[[1]] <- term[[1]][[3]]
  }
  term
}

settle_feature <- function(feature, data, env, known, rows, call) {
  elements <- split_crossed(feature)
  crossed <- length(elements) > 1
  if (!crossed && is.name(feature)) {
    return(feature)
  }
  join_crossed(lapply(elements, function(element) {
    key <- paste0(if (crossed) ":", name_term(element))
    known[[key]] %||% settle_element(element, crossed, data, env, rows, call)
  }))
}

# A term with what it learns; itself if it learns nothing.
settle_element <- function(element, crossed, data, env, rows, call) {
  code <- spell_plainly(element)
  check_nested(code, env, call)
  if (is.call(code)) {
    check_term(code, data, call)
    used <- as.data.frame(data[all.vars(code)])
    used <- if (is.null(rows)) used else used[rows, , drop = FALSE]
    code <- learn_call(code, name_term(element), used, env, call)
  }
  if (crossed) {
    values <- take_term(new_learned(name_term(element), code), data, env, call)
    if (is_category(values)) {
      levels <- as.call(c(quote(c), as.list(levels(as_category(values)))))
      code <- base::call("factor", code, levels = levels)
    }
  }
  if (identical(code, element)) element else new_learned(name_term(element), code)
}

# The call with what it learned from the data as further arguments.
learn_call <- function(code, name, data, env, call) {
  frame <- evaluate_term(code, data, env, call, name)
  learned <- attr(attr(frame, "terms"), "predvars")[[2]]
  if (identical(learned, code)) {
    if (rlang::is_call(code, "poly", ns = "") && isTRUE(code$simple)) {
      abort_learning(code, "keeps nothing of what it learns", call)
    }
    return(code)
  }
  for (place in seq_along(learned)[-1]) {
    value <- learned[[place]]
    if (!is.language(value) && !is.null(value)) {
      learned[[place]] <- write_out(value, name, call)
    }
  }
  learned
}

# A value as a constant, or as a call of c() or list() that makes it.
write_out <- function(value, name, call) {
  if (is.list(value)) {
    return(as.call(c(quote(list), lapply(value, write_out, name, call))))
  }
  if (!is.atomic(value)) {
    abort_gpukeras(
      sprintf("The term `%s` of the formula learns %s, not numbers.", name, describe(value)),
      code = "data", hint = "Compute that column first.", arg = "formula", call = call
    )
  }
  value <- as.vector(unname(value))
  if (length(value) == 1 || is.null(value)) value else as.call(c(quote(c), as.list(value)))
}

# R writes out what the outermost call learns. One within another would learn from new rows anew.
check_nested <- function(code, env, call) {
  found <- if (is.call(code)) find_learning(as.list(code)[-1], env)
  if (!is.null(found)) {
    abort_learning(code, sprintf("has %s within another call", found), call)
  }
}

# Labels and offsets are computed from their row alone.
check_unlearned <- function(term, env, call) {
  found <- find_learning(list(term), env)
  if (!is.null(found)) {
    abort_learning(term, sprintf("calls %s", found), call)
  }
}

abort_learning <- function(term, problem, call) {
  abort_gpukeras(
    sprintf(
      "The term `%s` of the formula %s, which new rows would change.", name_term(term), problem
    ),
    code = "data", hint = "Compute that column first.", arg = "formula", call = call
  )
}

# The first call in terms of one of R's functions that learn, as text; NULL if there is none.
find_learning <- function(terms, env) {
  inner <- unlist(lapply(terms, function(term) if (!missing(term)) called_in(term)))
  learning <- packaged_functions[names(packaged_functions) != "survival"]
  ours <- bind_packaged(new.env(parent = emptyenv()))
  same <- function(name) identical(find_functions(name, env), find_functions(name, ours))
  found <- c(
    Filter(same, intersect(inner, unlist(learning))), intersect(inner, packaged_calls(learning))
  )
  if (length(found) > 0) paste0(found[1], "()")
}

# Learned terms of a recipe ------------------------------------------------------------------------

# The learned terms of a recipe's formula by name, with ":" before those of interactions: a formula
# that is written out again for the same recipe learns nothing.
known_terms <- function(text, call = caller_env()) {
  if (is_recipe_key(text) || !grepl(".learned(", text %||% "", fixed = TRUE)) {
    return(list())
  }
  known <- list()
  for (feature in formula_parts(parse_formula(text, call))$features) {
    elements <- split_crossed(feature)
    for (element in Filter(is_learned, elements)) {
      found <- if (is.null(the$formulas[[text]])) find_disallowed_learned(element)
      if (!is.null(found)) abort_disallowed(found, call)
      known[[paste0(if (length(elements) > 1) ":", element[[2]])]] <- element
    }
  }
  known
}

# Reading ------------------------------------------------------------------------------------------

# Arguments of a learned call in a file, besides the first, which is a term. A file must have those
# that are needed: without them the call would learn from new rows.
learned_arguments <- list(
  poly = list(allowed = c("", "degree", "coefs"), needed = "coefs"),
  scale = list(allowed = c("center", "scale"), needed = c("center", "scale")),
  ns = list(
    allowed = c("knots", "Boundary.knots", "intercept"), needed = c("knots", "Boundary.knots")
  ),
  bs = list(
    allowed = c("degree", "knots", "Boundary.knots", "intercept"),
    needed = c("degree", "knots", "Boundary.knots")
  )
)

most_degree <- 30 # of a polynomial in a file, as its matrix has a column for each
most_knots <- 1000 # numbers of an argument in a file

# Describes what is not allowed in a learned term of a file; NULL if there is nothing. Its further
# arguments are constants.
find_disallowed_learned <- function(term) {
  code <- term[[3]]
  if (has_levels(term)) {
    return(find_disallowed_levels(term[[2]], code))
  }
  name <- if (is.call(code) && is.name(code[[1]])) as.character(code[[1]]) else ""
  if (!name %in% names(learned_arguments)) {
    return(find_disallowed(code))
  }
  if (!has_learned(code, learned_arguments[[name]])) {
    return(sprintf("`%s()` without the numbers that it has learned", name))
  }
  if (name == "poly" && "cbind" %in% called_in(code[[2]])) {
    return("`poly()` of several columns")
  }
  find_first(list(code[[2]]), find_disallowed)
}

find_disallowed_levels <- function(text, code) {
  known <- is_constant(code$levels, most_pairs)
  find_disallowed_learned(new_learned(text, code[[2]])) %||%
    if (!known) "factor() with levels that are no constants"
}

# Whether a call has what it learned, and nothing but constants beside its term.
has_learned <- function(code, rule) {
  names <- rlang::names2(as.list(code))
  given <- as.list(code)[-(1:2)]
  if (length(code) < 3 || nzchar(names[2]) || !all(vapply(given, is_constant, NA))) {
    return(FALSE)
  }
  names <- names[-(1:2)]
  open <- vapply(given, function(value) is.null(value) || isTRUE(value), NA)
  all(names %in% rule$allowed) && all(rule$needed %in% names[!open]) && !anyDuplicated(names) &&
    all(vapply(given[names %in% c("", "degree")], is_degree, NA))
}

is_degree <- function(value) is.numeric(value) && value <= most_degree

# Whether a value is a constant, or c() or list() of constants, nested as in poly()'s coefs.
is_constant <- function(value, most = most_knots, depth = 3) {
  if (missing(value)) {
    FALSE
  } else if (rlang::is_call(value, "-", n = 1)) {
    is.numeric(value[[2]])
  } else if (rlang::is_call(value, c("c", "list"), ns = "")) {
    depth > 0 && length(value) <= most + 1 &&
      all(vapply(as.list(value)[-1], is_constant, NA, most, depth - 1))
  } else {
    is.null(value) || is.atomic(value) && length(value) == 1
  }
}
