# Examples and vignettes run where Python has what they need, and are left out elsewhere.

# Whether the Python that gpukeras would take has these modules. Another process looks for them and
# imports nothing: neither Python starts here nor a download.
can_run_examples <- function(modules = c("tensorflow", "keras")) {
  python <- examples_python()
  if (!nzchar(python)) {
    return(FALSE)
  }
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

# The first chunk of each vignette calls it: `...` are more options of its chunks. As those of other
# packages, our vignettes run their code only where NOT_CRAN says so, which make and devtools do.
set_up_vignette <- function(..., packages = "ggplot2") {
  installed <- vapply(packages, requireNamespace, logical(1), quietly = TRUE)
  knitr::opts_chunk$set(
    eval = identical(Sys.getenv("NOT_CRAN"), "true") && all(installed) && can_run_examples(),
    collapse = TRUE, comment = "#>", fig.width = 7, ...
  )
}
