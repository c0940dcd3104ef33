# Whether examples can run with this Python.

# Whether the Python that gpukeras would use meets its requirements on TensorFlow, with which the
# examples are written, and has these modules besides. Child processes look for them and import
# nothing, so that neither Python nor a download starts in this session. Under R CMD check no
# example starts `processes`: servers, workers, and those that check an exported model.
can_run_examples <- function(modules = character(), processes = FALSE) {
  python <- examples_python()
  if (!nzchar(python) || (processes && is_under_check())) {
    return(FALSE)
  }
  facts <- ask_python(python, choose_least(backend = "tensorflow"), isolated = FALSE)
  ready <- !nzchar(facts$failed) && length(facts$lacking) == 0 &&
    facts$version >= numeric_version(known_good()$oldest$python)
  ready && (length(modules) == 0 || has_modules(python, modules))
}

has_modules <- function(python, modules) {
  code <- paste(
    "import sys, importlib.util as u;",
    "sys.exit(not all(u.find_spec(m) for m in sys.argv[1:]))"
  )
  run_python(python, c("-c", code, modules))$status == 0
}

# "" where reticulate would make an environment, or search for one.
examples_python <- function() {
  if (python_runs()) {
    return(python_path())
  }
  given <- Sys.getenv("RETICULATE_PYTHON")
  if (nzchar(given)) {
    return(if (given == "managed") "" else given)
  }
  choose_python(read_choices(environments_root(), can_require = TRUE))$python %||% ""
}
