# The plan of install_gpukeras(), made by reading only, and its text.

plan_install <- function(required, envname, python, new, wheels, packages) {
  path <- as_environment_path(envname)
  plan <- list(
    envname = envname, path = path, exists = dir.exists(path), new = new,
    packages = packages %||% required$packages,
    reason = if (is.null(packages)) required$reason else "as `packages` asks for",
    wheels = if (!is.null(wheels)) normalizePath(wheels), problem = ""
  )
  found <- if (plan$exists && !new) {
    read_environment(path, plan$packages, required$python)
  } else {
    find_interpreter(python, plan$packages, required$python)
  }
  plan[names(found)] <- found
  if (plan$exists && new && !is_environment(path)) {
    plan$problem <- sprintf("%s is no virtual environment, so it is not replaced", path)
  }
  plan$download <- download_command(plan)
  new_result(plan, "gpu_install")
}

# The path of an environment: a name is one in reticulate's folder, anything with a slash is a path.
as_environment_path <- function(envname) {
  path <- if (grepl("[/\\\\]", envname)) envname else file.path(environments_root(), envname)
  path <- path.expand(path)
  parent <- normalizePath(dirname(path), winslash = "/", mustWork = FALSE)
  file.path(parent, basename(path))
}

is_environment <- function(path) file.exists(file.path(path, "pyvenv.cfg"))

# An existing environment: what it lacks, and why it cannot be completed, or "".
read_environment <- function(path, packages, range) {
  python <- environment_python(path)
  facts <- ask_python(python, packages)
  problem <- if (!is_environment(path)) {
    sprintf("%s is there, and is no virtual environment", path)
  } else if (nzchar(facts$failed)) {
    sprintf("the environment's Python does not run (%s); `new = TRUE` makes it anew", facts$failed)
  } else if (!is_version_within(facts$version, range)) {
    sprintf(
      "the environment has Python %s, not %s; `new = TRUE` makes it anew", facts$version,
      describe_range(range)
    )
  } else {
    describe_clash(facts$lacking)
  }
  list(python = python, version = facts$version, lacking = facts$lacking, problem = problem)
}

describe_clash <- function(lacking) {
  clash <- Filter(function(lack) isTRUE(lack$clash), lacking)
  if (length(clash) == 0) {
    return("")
  }
  sprintf(
    "the environment has %s, whose files are those of %s; `new = TRUE` makes it anew",
    clash[[1]]$found, clash[[1]]$wanted
  )
}

is_version_within <- function(version, range) {
  numeric_version(version) >= range[1] && numeric_version(version) < range[2]
}

# From "3.10" and below "3.14".
describe_range <- function(range) {
  below <- unlist(numeric_version(range[2]))
  sprintf("%s to %d.%d", range[1], below[1], below[2] - 1L)
}

# Printing ----------------------------------------------------------------------------------------

# The command that fetches the packages on another computer.
download_command <- function(plan) {
  python <- sub("^$", "python3", sub("^(3[.][0-9]+).*", "python\\1", plan$version))
  paste(
    python, "-m pip download --dest wheels --only-binary=:all:",
    paste(shQuote(plan$packages, "cmd"), collapse = " ")
  )
}

#' @export
format.gpu_install <- function(x, ...) {
  kept <- x$exists && !x$new
  lacking <- vapply(x$lacking, `[[`, "", "install")
  what <- if (length(lacking) == 0) {
    "Nothing is to be done."
  } else {
    c("To install:", paste("*", lacking))
  }
  c(
    sprintf(
      "<gpu_install> %s: %s", x$path, if (kept) "is there" else if (x$exists) "anew" else "new"
    ),
    sprintf("Python %s%s", x$version, if (nzchar(x$python)) paste0(": ", x$python) else "none"),
    if (startsWith(x$reason, "JAX")) x$reason else paste("TensorFlow", x$reason),
    what,
    if (!is.null(x$wheels)) sprintf("From the folder %s, without a network", x$wheels),
    if (nzchar(x$problem)) sprintf("Cannot be done: %s.", x$problem)
  )
}

#' @export
print.gpu_install <- function(x, ...) {
  NextMethod()
  if (is.null(x$wheels)) {
    cat_lines("For a computer without a network, fetch the packages elsewhere:")
    cat_lines(x$download)
  }
  invisible(x)
}
