# Python interpreters: finding one that can make an environment, and running one in a child process.

# The first interpreter that can make the environment; if none can, the reasons for each.
find_interpreter <- function(python, packages, range) {
  candidates <- if (is.null(python)) list_interpreters() else path.expand(python)
  against <- character()
  for (candidate in candidates) {
    facts <- ask_interpreter(candidate, packages)
    fault <- judge_interpreter(facts, range)
    if (!nzchar(fault)) {
      return(list(python = facts$python, version = facts$version, lacking = all_missing(packages)))
    }
    against <- c(against, sprintf("%s %s", candidate, fault))
  }
  problem <- sprintf(
    "there is no Python %s that can make an environment%s%s", describe_range(range),
    if (length(against) > 0) ": " else "", paste(against, collapse = "; ")
  )
  list(python = "", version = "", lacking = all_missing(packages), problem = problem)
}

# Why an interpreter cannot make an environment for R, or "".
judge_interpreter <- function(facts, range) {
  if (nzchar(facts$failed)) {
    sprintf("does not run (%s)", facts$failed)
  } else if (!is_version_within(facts$version, range)) {
    sprintf("is Python %s", facts$version)
  } else {
    paste(unlist(facts$faults), collapse = ", ")
  }
}

# Everything is missing in a new environment.
all_missing <- function(packages) {
  lapply(packages, function(text) list(wanted = text, found = "", install = text, clash = FALSE))
}

# Programs on the path first, where modules of clusters are. A shim of pyenv may be among them;
# ask_interpreter() resolves it.
list_interpreters <- function() {
  names <- c("python3", paste0("python3.", 13:10), "python")
  places <- c(
    "/usr/bin/python3", "/usr/local/bin/python3", "/opt/python/*/bin/python3",
    file.path(Sys.getenv("PYENV_ROOT", "~/.pyenv"), "versions/3.*/bin/python3"),
    "/Library/Frameworks/Python.framework/Versions/3.*/bin/python3",
    "~/AppData/Local/Programs/Python/Python3*/python.exe"
  )
  found <- c(
    Sys.getenv("RETICULATE_VIRTUALENV_STARTER"), unname(Sys.which(names)),
    Sys.glob(path.expand(places))
  )
  found <- found[nzchar(found) & file.exists(found)]
  found[!duplicated(normalizePath(found))] # python3 is a link to python3.11, for example
}

# Asks the interpreter that a shim or an environment refers to.
ask_interpreter <- function(python, packages) {
  facts <- ask_python(python, packages)
  if (nzchar(facts$failed) || facts$python == python) facts else ask_python(facts$python, packages)
}

# The version, path and missing packages of an interpreter, asked in a child process that writes no
# files (-B): an isolated one (-I), or one that looks where this session would, also in PYTHONPATH.
ask_python <- function(python, packages, isolated = TRUE) {
  code <- paste(
    "import sys; sys.path.insert(0, sys.argv[1]);",
    "from gpukeras.system import requirements; requirements.main(sys.argv[2:])"
  )
  core <- system.file("python", package = "gpukeras", mustWork = TRUE)
  said <- run_python(python, c(if (isolated) "-IB" else "-B", "-c", code, core, packages))
  answer <- if (said$status == 0) {
    tryCatch(
      jsonlite::fromJSON(utils::tail(said$lines, 1), simplifyVector = FALSE),
      error = function(condition) NULL
    )
  }
  if (is.null(answer)) {
    failed <- utils::tail(c("it says nothing", trimws(said$lines)), 1)
    return(ask_old_python(python) %||% list(failed = failed))
  }
  c(answer, failed = "")
}

# A Python that is too old to run the core's code, such as 3.9 of RHEL 9, still says its version.
ask_old_python <- function(python) {
  version <- sub("^Python ([0-9]+[.][0-9.]*[0-9]).*", "\\1", run_python(python, "-V")$lines[1])
  if (isTRUE(numeric_version(version, strict = FALSE) < known_good()$oldest$python)) {
    list(python = python, version = version, faults = list(), lacking = list(), failed = "")
  }
}

# Runs an interpreter. Returns its exit status, and its output unless the output is shown.
run_python <- function(python, args, shown = FALSE) {
  if (!file.exists(python)) {
    return(list(status = 1L, lines = "it is not there"))
  }
  output <- if (shown) "" else TRUE
  libraries <- own_libraries(python)
  said <- tryCatch(
    suppressWarnings(system2(
      python, shQuote(args), stdout = output, stderr = output,
      env = paste0(names(libraries), rep("=", length(libraries)), shQuote(libraries))
    )),
    error = function(condition) NULL # status 127, as of pyenv's shim of another version
  )
  if (is.null(said)) {
    return(list(status = 127L, lines = "it cannot be run"))
  }
  if (shown) {
    return(list(status = said, lines = character()))
  }
  list(status = attr(said, "status") %||% 0L, lines = as.character(said))
}

# R puts the system's libraries first, from which an interpreter elsewhere may load another Python.
own_libraries <- function(python) {
  folder <- file.path(dirname(dirname(normalizePath(python))), "lib")
  if (Sys.info()[["sysname"]] != "Linux" || !dir.exists(folder)) {
    return(character())
  }
  given <- Sys.getenv("LD_LIBRARY_PATH")
  c(LD_LIBRARY_PATH = paste(c(folder, given[nzchar(given)]), collapse = ":"))
}
