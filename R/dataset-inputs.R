# Several inputs and outputs: named lists of rows and labels, and groups of a data frame's columns.

# A list of inputs or outputs; a list without any name is refused elsewhere.
is_named_list <- function(x) rlang::is_bare_list(x) && !is.null(names(x))

# A list without names, for a model without names of inputs or outputs: its elements are sent by
# position, and the model gets a list.
place_parts <- function(x, which) {
  names <- sprintf("%s%d", sub("s$", "_", which), seq_along(x))
  structure(stats::setNames(x, names), listed = TRUE)
}

# Inputs as arguments of the core: features, and whether numbers are standardised.
as_inputs <- function(x, arg, call, zones = list(), scale = NULL) {
  check_part_names(x, arg, call)
  inputs <- lapply(names(x), function(name) {
    part <- x[[name]]
    own <- sprintf("%s$%s", arg, name)
    if (rlang::is_bare_list(part)) {
      abort_gpukeras(
        sprintf("`%s` must be numeric or a data frame, not a list.", own),
        code = "data", arg = own, call = call
      )
    }
    list(
      name = name, features = as_features(part, own, call, as.list(zones[[name]])),
      scale = scale %||% is.data.frame(part)
    )
  })
  list(kind = "inputs", inputs = inputs, listed = isTRUE(attr(x, "listed")))
}

# Labels of several outputs as arguments of the core.
as_outputs <- function(y, arg, call) {
  check_part_names(y, arg, call)
  outputs <- lapply(names(y), function(name) {
    own <- if (arg == "formula") name else sprintf("%s$%s", arg, name) # a formula's are columns
    list(name = name, labels = as_labels(y[[name]], own, call))
  })
  list(kind = "outputs", outputs = outputs, listed = isTRUE(attr(y, "listed")))
}

# Weights of several outputs as arguments of the core; NULL, as in Keras, gives an output none.
as_output_weights <- function(weights, call) {
  weights <- weights[!vapply(weights, is.null, NA)]
  check_part_names(weights, "weights", call)
  outputs <- lapply(names(weights), function(name) {
    list(name = name, values = as_weights(weights[[name]], call, paste0("weights$", name)))
  })
  list(outputs = outputs)
}

# Groups of columns as arguments of the core; NULL for a single input.
as_groups <- function(inputs, call = caller_env()) {
  if (is.null(inputs)) {
    return(NULL)
  }
  if (!rlang::is_bare_list(inputs) || !all(vapply(inputs, is.character, NA))) {
    abort_spec(inputs, "inputs", "a named list of column names", call)
  }
  check_part_names(inputs, "inputs", call)
  Map(
    function(name, columns) list(name = name, columns = as.list(unname(columns))),
    names(inputs), unname(inputs)
  ) |> unname()
}

# Checks that the elements of a list have unique names.
check_part_names <- function(x, arg, call) {
  names <- names(x) %||% rep("", length(x))
  if (length(x) > 0 && all(nzchar(names)) && !anyNA(names) && !anyDuplicated(names)) {
    return(invisible(x))
  }
  problem <- if (length(x) == 0) {
    "is empty"
  } else if (anyDuplicated(names[nzchar(names)])) {
    sprintf("has `%s` twice", names[duplicated(names)][1])
  } else {
    "has an element without a name"
  }
  abort_gpukeras(
    sprintf("The list `%s` %s.", arg, problem),
    code = "data", hint = "Its names are those of the model's inputs or outputs.",
    arg = arg, call = call
  )
}

# A list of inputs with only the columns that the recipe names.
known_inputs <- function(data, recipe) {
  for (part in recipe$inputs) {
    if (is.data.frame(data[[part$name]])) {
      data[[part$name]] <- known_columns(data[[part$name]], part$recipe)
    }
  }
  data
}

# The labels of `list(price, cut) ~ .` by name, as calls; NULL for a formula with one label.
label_calls <- function(label) {
  if (!rlang::is_call(label, "list")) {
    return(NULL)
  }
  calls <- as.list(label)[-1]
  own <- vapply(calls, function(one) paste(deparse(one, backtick = FALSE), collapse = " "), "")
  names <- names(calls) %||% rep("", length(calls))
  stats::setNames(calls, ifelse(nzchar(names), names, own))
}

# Names of label columns as the left side of a formula.
label_of <- function(names) {
  if (length(names) == 1) as.name(names) else as.call(c(as.name("list"), lapply(names, as.name)))
}

# Printing -----------------------------------------------------------------------------------------

# The features of a dataset or a recipe: a line, or one for each input.
format_inputs <- function(x) {
  if (length(x$inputs) > 0) {
    return(vapply(x$inputs, function(part) {
      sprintf("input:    `%s`, %s", part$name, format_features(part$recipe))
    }, ""))
  }
  groups <- vapply(x$groups, function(group) {
    sprintf("input:    `%s`, of %s", group$name, shorten(unlist(group$columns), 8))
  }, "")
  c(paste("features:", format_features(x)), groups)
}

# The labels: a line, or one for each output.
format_outputs <- function(label) {
  if (length(label$outputs) == 0) {
    return(paste("labels:  ", format_label(label)))
  }
  vapply(label$outputs, function(output) {
    sprintf("output:   `%s`, %s", output$name, format_label(output$rule))
  }, "")
}
