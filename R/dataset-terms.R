# Terms of formulas as terms() finds them: interactions, offsets, and what the formula removes.
#
# An interaction is a call of `:`. Its elements are multiplied: numbers as they are, a factor as one
# 0/1 column for each level, as model.matrix() does without contrasts. Factors alone become one
# factor of all pairs of levels.

most_crossed <- 1000L # columns of an interaction, as many as the core makes of a factor
most_pairs <- 1e6 # levels of a factor of pairs

# The parts of a formula by its terms. `y ~ a * b` has the features a, b and a:b; `y ~ . - b` has
# no b. The intercept is left out: a network's layers have their own.
expand_terms <- function(terms, env, call) {
  variables <- as.list(attr(terms, "variables"))[-1]
  factors <- attr(terms, "factors")
  features <- lapply(seq_along(attr(terms, "term.labels")), function(place) {
    join_crossed(variables[factors[, place] > 0])
  })
  response <- attr(terms, "response")
  offsets <- lapply(variables[attr(terms, "offset")], check_offset_call, call)
  strata <- vapply(features, is_strata, NA)
  label <- if (response > 0) variables[[response]]
  check_label_apart(label, features, call)
  new_parts(label, features[!strata], offsets, features[strata])
}

# lm() warns, and drops the label; here a network would learn to copy it.
check_label_apart <- function(label, features, call) {
  if (list(label) %in% unlist(lapply(features, split_crossed), recursive = FALSE)) {
    abort_gpukeras(
      sprintf("The formula has its label, `%s`, among the features.", name_term(label)),
      code = "data", hint = "Remove it from the right side.", arg = "formula", call = call
    )
  }
}

is_crossed <- function(term) rlang::is_call(term, ":", n = 2)

# The elements of `a:b:c`, by a loop; of another term the term itself.
split_crossed <- function(term) {
  parts <- list()
  while (!missing(term) && is_crossed(term)) {
    parts[[length(parts) + 1]] <- term[[3]]
    term <- term[[2]]
  }
  rev(c(parts, list(term)))
}

join_crossed <- function(elements) Reduce(function(one, two) call(":", one, two), elements)

# Offsets ------------------------------------------------------------------------------------------

# The name of the column of an offset; several are added.
name_offset <- function(offsets) {
  if (length(offsets) > 0) {
    paste(sprintf("offset(%s)", vapply(offsets, name_term, "")), collapse = " + ")
  }
}

check_offset_call <- function(term, call) {
  if (length(term) != 2) {
    abort_gpukeras(
      sprintf("`%s` of the formula must have one argument.", name_term(term)),
      code = "data", arg = "formula", call = call
    )
  }
  term[[2]]
}

take_offset <- function(parts, data, call) {
  values <- lapply(parts$offsets, function(term) {
    values <- plain_number(drop_asis(take_term(term, data, parts$env, call)), "offset", call)
    if (!is.numeric(values) || is.object(values) || length(values) != nrow(data)) {
      abort_gpukeras(
        sprintf(
          "`offset(%s)` of the formula must be a number for each row, not %s.", name_term(term),
          describe(values)
        ),
        code = "data", arg = "formula", call = call
      )
    }
    as.double(values)
  })
  stats::setNames(list(Reduce(`+`, values)), name_offset(parts$offsets))
}

# Marks the column of the offset for the core, which neither centres nor scales nor imputes it.
mark_offset <- function(features, name) {
  for (place in seq_along(features$columns)) {
    if (identical(features$columns[[place]]$name, name)) features$columns[[place]]$offset <- TRUE
  }
  features
}

check_no_offset <- function(parts, call) {
  found <- name_offset(parts$offsets) %||% name_strata(parts$strata)
  if (!is.null(found)) {
    abort_gpukeras(
      sprintf("`%s` of the formula does not apply to images.", found),
      code = "data", arg = "formula", call = call
    )
  }
}

# The groups of columns of a formula. A group may name a term that has become several columns; an
# offset and the number of a stratum are groups of their own, the last, which makes them inputs of
# the model.
formula_inputs <- function(inputs, parts, recipe = NULL) {
  last <- drop_null(list(offset = name_offset(parts$offsets), strata = name_strata(parts$strata)))
  if (!is.list(inputs)) {
    learned <- length(last) == 0 || !is.null(recipe)
    own <- if (!learned) c(list(features = setdiff(names(parts$x), unlist(last))), last)
    return(inputs %||% own)
  }
  spread <- attr(parts$x, "spread")
  named <- lapply(inputs, function(columns) {
    unlist(lapply(columns, function(name) spread[[name]] %||% name))
  })
  c(named, last)
}

# Interactions -------------------------------------------------------------------------------------

# The columns of an interaction by name.
take_crossed <- function(elements, name, data, env, call) {
  values <- lapply(elements, take_element, name, data, env, call)
  if (all(vapply(values, is.factor, NA))) {
    check_crossed(prod(vapply(values, nlevels, 0L)), most_pairs, "levels", name, call)
    return(stats::setNames(list(Reduce(cross_factors, values)), name))
  }
  columns <- Map(element_columns, values, lapply(elements, name_term))
  check_crossed(prod(lengths(columns)), most_crossed, "columns", name, call)
  Reduce(multiply_columns, columns)
}

check_crossed <- function(found, most, what, name, call) {
  if (found > most) {
    abort_gpukeras(
      sprintf(
        "The interaction `%s` of the formula has %s %s; gpukeras makes up to %s.", name,
        format_count(found), what, format_count(most)
      ),
      code = "data", hint = "Merge rare levels first.", arg = "formula", call = call
    )
  }
}

# The values of one element: numbers, a matrix of numbers, or a factor with the levels of training.
take_element <- function(element, name, data, env, call) {
  if (has_levels(element)) {
    return(take_levels(element, data, env, call))
  }
  values <- plain_column(take_term(element, data, env, call))
  if (is.logical(values) && all(is.na(values))) {
    return(values + 0)
  }
  if (is_category(values)) {
    abort_not_numbers(element, values, call)
  }
  if (!is.numeric(values) || inherits(values, c("Date", "POSIXct", "difftime"))) {
    abort_gpukeras(
      sprintf(
        "The interaction `%s` of the formula has `%s`, which is %s.", name, name_term(element),
        describe(values)
      ),
      code = "data", hint = "Interactions are of numbers, logicals, factors and texts.",
      arg = "formula", call = call
    )
  }
  values
}

# A category has no levels here where training had numbers.
abort_not_numbers <- function(element, values, call) {
  abort_gpukeras(
    sprintf(
      "Column `%s` of `data` is %s where training had numbers.", name_term(element),
      describe(values)
    ),
    code = "data", hint = "Convert it to the numbers that it stands for.",
    arg = "data", column = name_term(element), call = call
  )
}

is_category <- function(values) {
  is.factor(values) || (is.character(values) || is.logical(values)) && is.null(dim(values))
}

# A category as a factor; a logical has both levels, whichever occur.
as_category <- function(values) {
  if (is.logical(values)) factor(values, c(FALSE, TRUE)) else as.factor(values)
}

# A factor of pairs of levels, in the order of R's `:`.
cross_factors <- function(one, two) {
  codes <- (as.integer(one) - 1L) * nlevels(two) + as.integer(two)
  levels <- paste(rep(levels(one), each = nlevels(two)), levels(two), sep = ":")
  structure(codes, levels = levels, class = "factor")
}

# The columns of one element by name.
element_columns <- function(values, name) {
  if (!is.factor(values)) {
    return(spread_matrix(if (is.matrix(values)) values else as.double(values), name))
  }
  columns <- lapply(seq_len(nlevels(values)), function(code) as.double(as.integer(values) == code))
  stats::setNames(columns, paste0(name, "=", levels(values)))
}

# The products of all pairs of columns; the first element's columns vary fastest.
multiply_columns <- function(one, two) {
  pairs <- expand.grid(one = seq_along(one), two = seq_along(two))
  columns <- Map(function(i, j) one[[i]] * two[[j]], pairs$one, pairs$two)
  stats::setNames(columns, paste(names(one)[pairs$one], names(two)[pairs$two], sep = ":"))
}
