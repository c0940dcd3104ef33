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
  check_known_levels(setdiff(values[!is.na(values)], levels), name_term(term), call)
  factor(values, levels)
}

check_known_levels <- function(new, name, call) {
  if (length(new) > 0) {
    shown <- paste(utils::head(new, 5), collapse = ", ")
    abort_gpukeras(
      sprintf(
        "Column `%s` of `data` has levels that training did not see: %s%s.", name, shown,
        if (length(new) > 5) ", ..." else ""
      ),
      code = "data", hint = "Drop those rows, or train with data that has them.",
      arg = "data", column = name, levels = new, call = call
    )
  }
}

# Whether a learned term is a factor with labels, whose levels were learned.
learned_labels <- function(term) {
  is_learned(term) && rlang::is_call(term[[3]], c("factor", "ordered"), ns = "") &&
    all(c("levels", "labels") %in% names(term[[3]]))
}

# Values that factor(x, labels = ) had no level for in training are NA, which `na` might impute.
check_labelled <- function(term, values, data, env, call) {
  given <- as.character(take_term(term[[3]][[2]], data, env, call))
  check_known_levels(unique(given[is.na(values) & !is.na(given)]), name_term(term), call)
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

# All terms of a formula, of interactions each element.
terms_of <- function(parts) {
  features <- unlist(lapply(parts$features, split_crossed), recursive = FALSE)
  strata <- unlist(lapply(parts$strata, strata_columns), recursive = FALSE)
  c(parts$labels, features, parts$offsets, strata, if (!is.null(parts$weights)) parts$weights)
}

# The parts with what their terms learn. Calls such as splines::ns() are spelled without `::`, and
# `env` finds their functions.
settle_terms <- function(parts, data, env, known, rows, call) {
  for (term in Filter(is.call, terms_of(parts))) check_special(term, env, call)
  used <- unlist(lapply(terms_of(parts), called_in))
  spelled <- intersect(used, packaged_calls())
  if (length(spelled) > 0) {
    env <- bind_packaged(new.env(parent = env), sub(".*::", "", spelled))
  }
  learn <- function(feature) settle_feature(feature, data, env, known, rows, call)
  settled <- new_parts(
    settle_label(parts$label, data, env, call), lapply(parts$features, learn), parts$offsets,
    settle_strata(parts$strata, data, env, known, call), parts$weights
  )
  settled$env <- env
  settled
}

# A label with what it learns; list() has several.
settle_label <- function(label, data, env, call) {
  if (rlang::is_call(label, "list")) {
    label[-1] <- lapply(as.list(label)[-1], settle_label, data, env, call)
    return(label)
  }
  label <- spell_plainly(label)
  if (rlang::is_call(label, "Surv", ns = "")) {
    return(settle_status(label, data, env, call))
  }
  learn_levels(label, data, env, call)
}

# Surv() takes a status of 1 and 2 for one of 0 and 1 if a 2 occurs: written so that it does not
# depend on the other rows, and that a 0 in new rows is no status, which Surv() makes NA.
settle_status <- function(label, data, env, call) {
  place <- find_status(label)
  if (length(place) == 1 && !is_empty(label[[place]])) {
    status <- take_term(label[[place]], data, env, call)
    if (is.numeric(status) && all(status %in% c(1, 2, NA)) && 2 %in% status) {
      label[[place]] <- base::call("-", label[[place]], 1)
    }
  }
  label
}

# The place of the status in Surv(time, status).
find_status <- function(label) {
  given <- rlang::names2(as.list(label))
  if ("event" %in% given) {
    return(which(given == "event"))
  }
  places <- which(!nzchar(given))[-1] # without the function
  if (length(places) + ("time" %in% given) == 2) utils::tail(places, 1)
}

# factor(x, labels = ) with the levels that it learns: without them, it fails where one is missing.
learn_levels <- function(code, data, env, call) {
  if (!takes_levels(code)) {
    return(code)
  }
  values <- sort(unique(plain_column(take_term(code[[2]], data, env, call))))
  if (is.factor(values)) values <- as.character(values)
  rest <- as.list(code)[-(1:2)]
  as.call(c(as.list(code)[1:2], list(levels = write_out(values, name_term(code), call)), rest))
}

# Whether a call is factor(x, labels = ), and maybe `ordered`.
takes_levels <- function(code) {
  if (!rlang::is_call(code, c("factor", "ordered"), ns = "") || length(code) < 3) {
    return(FALSE)
  }
  given <- rlang::names2(as.list(code))[-1]
  !nzchar(given[1]) && all(given[-1] %in% c("labels", "ordered")) && "labels" %in% given &&
    !is_empty(code[[2]])
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
  code <- if (is_strata(element)) factor_of_strata(element, call) else spell_plainly(element)
  if (is.call(code)) {
    check_term(code, data, call)
    used <- as.data.frame(data[all.vars(code)])
    used <- if (is.null(rows)) used else used[rows, , drop = FALSE]
    code <- learn_call(code, name_term(element), used, env, call)
    code <- learn_levels(code, data, env, call)
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

# Learned terms of a recipe ------------------------------------------------------------------------

# The learned terms of a recipe's formula by name, with ":" before those of interactions: a formula
# that is written out again for the same recipe learns nothing.
known_terms <- function(text, call = caller_env()) {
  if (is_recipe_key(text) || !grepl("[.]learned[(]|strata[(]", text %||% "")) {
    return(list())
  }
  known <- list()
  parts <- formula_parts(parse_formula(text, call))
  for (term in parts$strata) known[["strata()"]] <- term
  for (feature in parts$features) {
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
