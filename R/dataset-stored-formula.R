# Formulas from files are data, not code: a sum of columns, of calls of allowed functions, and of
# interactions of these, evaluated in an environment with these functions and the columns only. A
# formula that was written in this session may call any function: a key at its end finds its
# functions again.

# Functions without side effects that depend on their arguments only. None makes a large result of
# small arguments, as rep() and seq() do.
allowed_functions <- c(
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

# Those of each value alone, whose calls check_rowwise() need not try.
rowwise_functions <- setdiff(
  allowed_functions, c("%in%", "factor", "as.factor", "ordered", "as.ordered", "cut", "c")
)

# Operators with another meaning in formulas than in arithmetic.
term_operators <- c("+", "-", "*", "/", "^", "%in%", "|", "(")

most_nested <- 100 # depth of calls in a term
most_bytes <- 2^24 # length of a formula; tens of thousands of columns need less

# The environment of a formula from a file, without R's other functions and this session's objects.
allowed_environment <- function() {
  # model.frame() evaluates `list(column, call)`; a term itself calls list() for constants only.
  functions <- mget(c(allowed_functions, "list"), envir = baseenv())
  functions$cut <- cut_at
  env <- bind_packaged(list2env(functions, parent = emptyenv()))
  lockEnvironment(env, bindings = TRUE)
  env
}

# Functions of packages that formulas call without `::`. They are looked up when they are called.
packaged_functions <- list(
  base = "scale", stats = "poly", splines = c("ns", "bs"), survival = "Surv"
)

bind_packaged <- function(env, names = unlist(packaged_functions)) {
  for (package in names(packaged_functions)) {
    for (name in intersect(packaged_functions[[package]], names)) {
      local({
        from <- package
        what <- name
        delayedAssign(what, find_packaged(from, what), assign.env = env)
      })
    }
  }
  env
}

# A function that raises R's error if the package is not installed.
find_packaged <- function(package, name) {
  tryCatch(
    getExportedValue(package, name),
    packageNotFoundError = function(condition) function(...) stop(condition)
  )
}

# cut() with a number of breaks, or with "weeks", depends on all rows, and may make too many levels.
cut_at <- function(x, breaks, ...) {
  if (length(breaks) < 2) {
    abort_gpukeras(
      "cut() in a formula needs its breaks: a number of them depends on the other rows.",
      code = "data", hint = "Give them as `cut(x, c(0, 1, 2))`.", arg = "formula", call = NULL
    )
  }
  cut(x, breaks, ...)
}

# The parts of a formula as it is written: a sum.
formula_parts <- function(formula) {
  terms <- split_sum(formula[[length(formula)]])
  offsets <- vapply(terms, rlang::is_call, NA, "offset", n = 1, ns = "")
  strata <- vapply(terms, rlang::is_call, NA, "strata", ns = "")
  weights <- vapply(terms, rlang::is_call, NA, ".weights", n = 1, ns = "")
  label <- if (length(formula) == 3) formula[[2]]
  parts <- new_parts(
    label, terms[!offsets & !strata & !weights], lapply(terms[offsets], `[[`, 2), terms[strata]
  )
  if (any(weights)) parts$weights <- terms[weights][[1]][[2]]
  parts
}

# The label, features, offsets, strata and weights of a formula as calls and names. `labels` has the
# elements of list(price, cut), a single label, or is NULL.
new_parts <- function(label, features, offsets = list(), strata = list(), weights = NULL) {
  labels <- if (rlang::is_call(label, "list")) as.list(label)[-1] else list(label)
  list(
    label = label, labels = if (!is.null(label)) labels, features = features, offsets = offsets,
    strata = strata, weights = weights
  )
}

# The terms of a sum, by a loop: a long sum would exceed the limit of recursion.
split_sum <- function(term) {
  parts <- list()
  while (rlang::is_call(term, "+", n = 2)) {
    parts[[length(parts) + 1]] <- term[[3]]
    term <- term[[2]]
  }
  rev(c(parts, list(term)))
}

# Reading ------------------------------------------------------------------------------------------

# The parts of a formula of a model, a dataset or a recipe, and the environment of its calls.
read_formula <- function(text, call = caller_env()) {
  parts <- formula_parts(parse_formula(text, call))
  own <- the$formulas[[text]]
  found <- if (is.null(own)) find_disallowed_part(parts)
  if (!is.null(found)) abort_disallowed(found, call)
  parts$env <- own %||% allowed_environment()
  parts
}

abort_disallowed <- function(found, call) {
  abort_gpukeras(
    sprintf("The formula of the recipe holds %s, which no formula out of a file may.", found),
    code = "data", arg = "recipe", found = found, call = call,
    hint = paste(
      "Give rows as gpu_dataset(formula, data = , recipe = ), with the formula written out:",
      "what you write yourself may call anything."
    )
  )
}

# Parses without evaluating. R's parser refuses code that is nested too deeply, but recurses into
# pipes without limit, so they are counted first.
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

# Describes the first part that is not allowed; NULL if there is none.
find_disallowed_part <- function(parts) {
  elements <- unlist(lapply(parts$features, split_crossed), recursive = FALSE)
  found <- unlist(lapply(elements, find_disallowed_feature))
  if (length(found) > 0) {
    return(found[1])
  }
  weights <- if (!is.null(parts$weights)) list(parts$weights)
  others <- c(lapply(parts$labels, label_term), parts$offsets, weights)
  find_first(c(others, elements), function(term) {
    if (is_learned(term)) find_disallowed_learned(term) else find_disallowed(term)
  }) %||% find_first(parts$strata, find_disallowed_strata)
}

# What `find` finds in the first of the terms in which it finds something.
find_first <- function(terms, find) {
  for (term in terms) {
    found <- if (missing(term)) "an empty argument" else find(term)
    if (!is.null(found)) {
      return(found)
    }
  }
}

find_disallowed_feature <- function(feature) {
  if (rlang::is_call(feature, term_operators)) {
    sprintf("`%s` between its terms", as.character(feature[[1]]))
  } else if (!is.name(feature) && !is.call(feature)) {
    "a term that is no column"
  }
}

# A label of survival::Surv() is allowed as far as its arguments are.
label_term <- function(label) {
  if (!missing(label) && rlang::is_call(label, "Surv", ns = "")) label[[1]] <- quote(cbind)
  label
}

find_disallowed <- function(term, depth = 0) {
  if (depth > most_nested) {
    return(sprintf("a term of more than %d calls in each other", most_nested))
  }
  if (!is.call(term)) {
    return(find_disallowed_value(term))
  }
  if (!is.name(term[[1]]) || !as.character(term[[1]]) %in% allowed_functions) {
    return(describe_head(term[[1]]))
  }
  find_first(as.list(term)[-1], function(part) find_disallowed(part, depth + 1))
}

find_disallowed_value <- function(value) {
  if (is.name(value)) {
    if (grepl("^[.][.]([.]|[0-9]+)$", value)) sprintf("`%s`", as.character(value))
  } else if (!is.null(value) && !(is.atomic(value) && is.null(attributes(value)))) {
    "a value that is no constant"
  }
}

describe_head <- function(head) {
  spelt <- is_namespaced(head)
  if (!is.name(head) && !spelt) {
    return("a call of something else than a named function")
  }
  name <- if (spelt) deparse(head) else as.character(head)
  sprintf("`%s%s`", substr(name, 1, 60), if (spelt || make.names(name) == name) "()" else "")
}

# Keeping ------------------------------------------------------------------------------------------

# The text of a user's formula for the recipe, and the environment of its calls. A formula that
# would be allowed in a file, and calls base R's functions, needs no key. Others get one, by which
# this session finds their functions again; a file cannot know it.
keep_formula <- function(parts, text, env) {
  used <- unique(unlist(lapply(terms_of(parts), called_in)))
  own <- find_functions(used, env)
  common <- find_functions(used, bind_packaged(new.env(parent = baseenv())))
  if (is.null(find_disallowed_part(parts)) && identical(own, common)) {
    return(list(text = text, env = allowed_environment()))
  }
  key <- rlang::hash(list(tempfile(), Sys.time()))
  for (known in names(the$formulas)) {
    held <- as.list(the$formulas[[known]], sorted = TRUE)
    if (formula_text(known) == text && identical(held, own)) {
      return(list(text = known, env = env))
    }
  }
  keyed <- paste0(text, " #", key)
  remember_formula(keyed, own)
  list(text = keyed, env = env)
}

key_pattern <- " #[0-9a-f]{32}$"

# Stores the functions of a formula that was written here or in a process of gpu_run(). The rest of
# its environment, which may be large, is not kept.
remember_formula <- function(keyed, functions) {
  the$formulas[[keyed]] <- list2env(functions, parent = globalenv())
}

# A formula with its functions, for another process of gpu_run().
formula_record <- function(formula) {
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
  if (is_learned(term)) {
    return(called_in(term[[3]]))
  }
  names <- if (is.name(term[[1]]) || is_namespaced(term[[1]])) name_term(term[[1]])
  for (part in as.list(term)) {
    if (!missing(part)) names <- c(names, called_in(part))
  }
  unique(names)
}

is_namespaced <- function(head) {
  rlang::is_call(head, c("::", ":::"), n = 2) && all(vapply(as.list(head), is.name, NA))
}

# A formula's text without its key.
formula_text <- function(formula) sub(key_pattern, "", formula)

# The text to show: terms as the user wrote them, without learned numbers. A text from a file may be
# no formula, and is then shown as it is.
show_formula <- function(formula) {
  text <- formula_text(formula)
  if (!grepl("[.](learned|weights)[(]|strata[(]", text)) {
    return(text)
  }
  tryCatch(
    {
      parts <- formula_parts(parse_formula(text, NULL))
      offsets <- lapply(parts$offsets, function(term) call("offset", term))
      strata <- lapply(parts$strata, function(term) {
        as.call(c(quote(strata), unname(strata_columns(term))))
      })
      right <- vapply(c(parts$features, offsets, strata), write_term, "")
      left <- if (!is.null(parts$label)) paste(deparse_term(parts$label), "~ ") else "~"
      paste0(left, paste(right, collapse = " + "))
    },
    error = function(condition) text
  )
}

# A term as code that the user may have written.
write_term <- function(term) {
  elements <- vapply(split_crossed(term), function(element) {
    if (!is_learned(element)) {
      deparse_term(element)
    } else if (has_levels(element) && is.name(element[[3]][[2]])) {
      deparse_term(element[[3]][[2]])
    } else {
      element[[2]]
    }
  }, "")
  paste(elements, collapse = ":")
}
