# Arguments of compile(): losses and metrics, under the names that the user gave to R functions.

# NULL leaves the model as it is. Keras requires metrics as a list.
as_compiling <- function(optimizer, loss, metrics, model, call = caller_env()) {
  given <- list(optimizer = optimizer, loss = loss, metrics = metrics)
  if (all(vapply(given, is.null, NA))) {
    return(NULL)
  }
  several <- rlang::is_bare_list(metrics) || is.null(metrics) || is.character(metrics)
  metrics <- if (several) as.list(metrics) else list(metrics)
  parts <- parts_of(model, call)
  loss <- named_list(loss) # reticulate drops the names of a vector
  called <- name_functions(loss, "loss", parts, call)
  lone <- rlang::is_bare_list(called, 1) && !identical(names(called), names(loss))
  given["loss"] <- list(if (lone) called[[1]] else called)
  given["metrics"] <- list(name_functions(metrics, "metrics", parts, call))
  given
}

# R functions of a list under its names, which Keras would take for those of outputs. Under the name
# of an output a function has that name.
name_functions <- function(given, arg, parts, call) {
  own <- rlang::is_bare_list(given) && length(given) > 0
  if (!own || !any(vapply(given, is_nested_function, NA))) {
    return(given)
  }
  outputs <- unlist(parts()$outputs)
  names <- names(given)
  nested <- any(vapply(given, rlang::is_bare_list, NA))
  if (!is.null(names) && (nested || all(names %in% outputs))) {
    given[] <- Map(name_output_functions, given, names, MoreArgs = list(arg, parts, call))
    return(given)
  }
  check_function_names(given, arg, call)
  unname(Map(name_function, given, rlang::names2(given)))
}

name_output_functions <- function(part, name, arg, parts, call) {
  own <- sprintf("%s$%s", arg, name)
  several <- rlang::is_bare_list(part)
  if (several) name_functions(part, own, parts, call) else name_function(part, name)
}

name_function <- function(part, name) {
  if (is_r_function(part) && nzchar(name)) attr(part, "py_function_name") <- name
  part
}

# A callable Python object is a function in R too.
is_r_function <- function(x) is.function(x) && !is_python(x)

is_nested_function <- function(x) {
  is_r_function(x) || (rlang::is_bare_list(x) && any(vapply(x, is_nested_function, NA)))
}

# Two functions of one name could not be told apart, in a history or when the model is loaded.
check_function_names <- function(given, arg, call) {
  names <- rlang::names2(given)
  functions <- vapply(given, is_r_function, NA)
  own <- !vapply(given, function(one) is.null(attr(one, "py_function_name")), NA)
  unnamed <- functions & !nzchar(names) & !own
  problem <- if (sum(unnamed) > 1) {
    sprintf("`%s` has %d functions without names.", arg, sum(unnamed))
  } else if (anyDuplicated(names[nzchar(names)])) {
    sprintf("`%s` has the name `%s` twice.", arg, names[duplicated(names) & nzchar(names)][1])
  } else if (startsWith(arg, "metrics") && "loss" %in% names) {
    sprintf("`%s` has the name `loss`, which is that of the loss itself.", arg)
  } else if (any(nzchar(names) & !functions)) {
    sprintf(
      "`%s$%s` is no function, and `%s` no output of the model.", arg,
      names[nzchar(names) & !functions][1], names[nzchar(names) & !functions][1]
    )
  }
  if (!is.null(problem)) {
    abort_gpukeras(
      problem,
      code = "spec", arg = arg, call = call,
      hint = "Give R functions names of their own, and names and objects of Keras none."
    )
  }
}
