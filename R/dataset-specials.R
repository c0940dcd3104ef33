# Terms that have a meaning of their own in formulas of other packages. strata() gives the strata of
# the family "cox"; the others are refused by name: evaluated as plain functions, or as columns of
# codes, they would be another model without a word.

smooth <- list(
  "is a smooth term, whose penalty gpukeras does not estimate",
  "Use a spline of fixed size, such as splines::ns(x, 4), or hidden layers."
)
random_effect <- list(
  "is a random effect, which gpukeras does not know",
  "Use the column itself as a feature."
)
penalised <- list(
  "has a penalty of its own, which gpukeras does not have",
  "Use the columns as features, and gpu_mlp(penalty = )."
)
nonlinear <- list(
  "is a nonlinear term, which gpukeras does not know",
  "Use hidden layers, or compute that column first."
)

# What a name means, by the packages that define it; and what to do.
special_terms <- list(
  list("survival", c("frailty", "frailty.gamma", "frailty.gaussian", "frailty.t"), random_effect),
  list("survival", "pspline", smooth),
  list("survival", "ridge", penalised),
  list("survival", "cluster", list(
    "asks for robust standard errors, and gpukeras computes none",
    "Leave it out: the coefficients stay the same."
  )),
  list("survival", "tt", list(
    "is a feature that changes with time, which gpukeras does not know",
    "Compute features that are known at time 0."
  )),
  list("survival", "strata", list(
    "has strata() within another call", "Write strata(column) as a term of its own."
  )),
  list("rms", "strat", list(
    "is the stratum of rms", "Write strata(column), for the family \"cox\"."
  )),
  list(c("mgcv", "gam", "VGAM", "brms"), "s", smooth),
  list(c("mgcv", "brms"), c("te", "ti", "t2"), smooth),
  list("gam", "lo", smooth),
  list("VGAM", c("sm.os", "sm.ps"), smooth),
  list("quantreg", "qss", smooth),
  list("gamlss", c("pb", "pbm", "ps"), smooth),
  list(c("gamlss", "brms"), c("cs", "gp"), smooth),
  list(c("gam", "gamlss"), "random", random_effect),
  list("gamlss", "re", random_effect),
  list("INLA", "f", random_effect),
  list("stats", "Error", random_effect),
  list("brms", c("mo", "me", "mi", "mm"), nonlinear),
  list("gnm", c("Mult", "Exp", "Inv", "Dref", "MultHomog"), nonlinear),
  list("mboost", c("bbs", "bmono", "bspatial", "brad", "btree", "brandom"), smooth),
  list("stats", "C", list(
    "sets contrasts, and gpukeras has none: each level has a column",
    "Write the factor alone."
  ))
)

# Refuses a term of which another package makes something else than its values.
check_special <- function(term, env, call) {
  meant <- if (rlang::is_call(term, c("|", "||"))) {
    random_effect
  } else if (rlang::is_call(term, "offset", ns = "stats")) {
    list("is no offset in R, but a feature", "Write offset().")
  } else if (!is_learned(term)) {
    find_special(if (is_strata(term)) as.list(term)[-1] else list(term), env)
  }
  if (!is.null(meant)) {
    abort_gpukeras(
      sprintf("The term `%s` of the formula %s.", name_term(term), meant[[1]]),
      code = "data", hint = meant[[2]], arg = "formula", call = call
    )
  }
}

# What the first special that terms call means, and what to do; NULL if there is none.
find_special <- function(terms, env) {
  called <- unlist(lapply(terms, function(term) if (!missing(term)) called_in(term)))
  bare <- sub(".*:::?", "", called)
  for (special in Filter(function(special) any(special[[2]] %in% bare), special_terms)) {
    for (name in intersect(bare, special[[2]])) {
      spelled <- outer(special[[1]], c("::", ":::"), paste0)
      own <- name %in% called && comes_from(name, special[[1]], env)
      if (own || any(paste0(spelled, name) %in% called)) {
        return(special[[3]])
      }
    }
  }
}

# Whether a function is one of a package's, or not there: a user's own may have any name.
comes_from <- function(name, packages, env) {
  found <- get0(name, env, mode = "function")
  is.null(found) || environmentName(topenv(environment(found) %||% baseenv())) %in% packages
}

# Strata -------------------------------------------------------------------------------------------

# In a recipe's formula strata are `strata(a, b, levels = c("a=1, b=2", ...))`: the columns, and the
# strata that the rows had, by the names that survival gives them.

is_strata <- function(term) {
  rlang::is_call(term, "strata") || rlang::is_call(term, "strata", ns = "survival")
}

strata_columns <- function(term) {
  columns <- as.list(term)[-1]
  columns[rlang::names2(columns) != "levels"]
}

# The name of the column of the strata; NULL without any.
name_strata <- function(strata) {
  if (length(strata) > 0) {
    columns <- unlist(lapply(strata, strata_columns), recursive = FALSE)
    sprintf("strata(%s)", paste(vapply(columns, name_term, ""), collapse = ", "))
  }
}

# The strata of all terms together, with the names that the rows have, or those of a recipe.
settle_strata <- function(strata, data, env, known, call) {
  if (length(strata) == 0) {
    return(list())
  }
  columns <- unlist(lapply(strata, strata_columns), recursive = FALSE)
  named <- nzchar(rlang::names2(columns))
  if (any(named) || length(columns) == 0) {
    problem <- if (any(named)) {
      sprintf("has the argument `%s`", names(columns)[named][1])
    } else {
      "names no column"
    }
    abort_gpukeras(
      sprintf("The term `%s` of the formula %s.", name_term(strata[[1]]), problem),
      code = "data", hint = "Write strata(column), or strata(one, other).", arg = "formula",
      call = call
    )
  }
  own <- known[["strata()"]]
  if (!is.null(own) && identical(unname(strata_columns(own)), unname(columns))) {
    return(list(own))
  }
  values <- lapply(columns, take_term, data, env, call)
  sorted <- do.call(order, lapply(values, function(value) {
    if (is.factor(value)) as.integer(value) else xtfrm(value)
  }))
  found <- unique(name_rows(columns, values)[sorted])
  levels <- as.call(c(quote(c), as.list(found[!is.na(found)])))
  list(as.call(c(quote(strata), unname(columns), list(levels = levels))))
}

# The stratum of each row as text, NA if it is missing.
name_rows <- function(columns, values) {
  parts <- Map(function(column, value) {
    ifelse(is.na(value), NA, paste0(name_term(column), "=", as.character(value)))
  }, columns, values)
  whole <- do.call(paste, c(unname(parts), sep = ", "))
  ifelse(Reduce(`|`, lapply(values, is.na)), NA, whole)
}

# The column with the number of each row's stratum, from 0.
take_strata <- function(parts, data, call) {
  term <- parts$strata[[1]]
  columns <- strata_columns(term)
  given <- name_rows(columns, lapply(columns, take_term, data, parts$env, call))
  levels <- as.character(eval(term$levels, baseenv()))
  name <- name_strata(parts$strata)
  check_known_levels(setdiff(given[!is.na(given)], levels), name, call)
  stats::setNames(list(match(given, levels) - 1), name)
}

# Marks the column of the strata for the core, which takes it as it is.
mark_strata <- function(features, strata) {
  for (place in seq_along(features$columns)) {
    if (identical(features$columns[[place]]$name, name_strata(strata))) {
      levels <- length(strata[[1]]$levels) - 1L
      features$columns[[place]][c("offset", "strata")] <- list(TRUE, levels)
    }
  }
  features
}

# In an interaction the strata are a factor.
factor_of_strata <- function(element, call) {
  columns <- strata_columns(element)
  if (length(columns) != 1 || nzchar(rlang::names2(columns))) {
    abort_gpukeras(
      sprintf("The interaction with `%s` of the formula has several columns.", name_term(element)),
      code = "data", hint = "Write interactions with the columns themselves.", arg = "formula",
      call = call
    )
  }
  base::call("factor", columns[[1]])
}

# Describes what is not allowed in the strata of a file; NULL if there is nothing.
find_disallowed_strata <- function(term) {
  if (is.null(term$levels) || !is_constant(term$levels, most_pairs)) {
    return("strata() with levels that are no constants")
  }
  find_first(strata_columns(term), find_disallowed)
}
