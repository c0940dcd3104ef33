# Packages of Python, environments, and R processes that have chosen no Python, for the tests of
# install_gpukeras().

# The interpreter that environments are made of here. Nothing is installed on CRAN.
a_starter <- function() {
  skip_on_cran()
  if (is.null(known$starter)) {
    found <- find_interpreter(NULL, "numpy", choose_requirements(read_computer())$python)
    known$starter <- found$python
  }
  skip_if(!nzchar(known$starter), "there is no Python that can make an environment")
  known$starter
}

# Writes wheels with nothing but a module into `folder`: `...` are versions by package, several of
# the same name too, or `c(version, requirement)`.
write_wheels <- function(folder, ...) {
  wheels <- list(...)
  dir.create(folder, showWarnings = FALSE)
  code <- paste(
    "import sys, zipfile",
    "folder, *wheels = sys.argv[1:]",
    "for wheel in wheels:",
    "    name, version, *needs = wheel.split(' ')",
    "    stem = name.replace('-', '_'); info = f'{stem}-{version}.dist-info'",
    "    head = f'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n'",
    "    tag = 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'",
    "    files = {f'{stem}_module.py': f'version = {version!r}\\n',",
    "        f'{info}/METADATA': head + ''.join(f'Requires-Dist: {need}\\n' for need in needs),",
    "        f'{info}/WHEEL': tag}",
    "    with zipfile.ZipFile(f'{folder}/{stem}-{version}-py3-none-any.whl', 'w') as file:",
    "        for path, text in files.items(): file.writestr(path, text)",
    "        record = ''.join(f'{path},,\\n' for path in [*files, f'{info}/RECORD'])",
    "        file.writestr(f'{info}/RECORD', record)",
    sep = "\n"
  )
  named <- vapply(seq_along(wheels), function(at) {
    paste(c(names(wheels)[at], wheels[[at]]), collapse = " ")
  }, "")
  said <- run_python(a_starter(), c("-c", code, folder, named))
  stopifnot(said$status == 0)
  folder
}

# Sets what an R process of its own inherits for the rest of the test: no choice of a Python, and a
# home folder of its own, which is given back.
local_bare <- function(frame = parent.frame()) {
  home <- withr::local_tempdir(.local_envir = frame)
  withr::local_envvar(
    HOME = home, R_LIBS = paste(.libPaths(), collapse = .Platform$path.sep),
    RETICULATE_PYTHON = NA, RETICULATE_PYTHON_ENV = NA, RETICULATE_PYTHON_FALLBACK = NA,
    VIRTUAL_ENV = NA, CONDA_PREFIX = NA, WORKON_HOME = NA, XDG_CACHE_HOME = NA,
    XDG_DATA_HOME = NA, R_USER_CACHE_DIR = NA, R_SESSION_INITIALIZED = NA,
    RETICULATE_USE_MANAGED_VENV = NA, .local_envir = frame
  )
  home
}

# Runs lines of code in such a process; gives what it printed.
run_bare <- function(lines) {
  script <- withr::local_tempfile(lines = lines, fileext = ".R")
  said <- suppressWarnings(system2(
    file.path(R.home("bin"), "Rscript"), shQuote(c("--no-init-file", script)),
    stdout = TRUE, stderr = TRUE
  ))
  testthat::expect_identical(attr(said, "status") %||% 0L, 0L, info = paste(said, collapse = "\n"))
  as.character(said)
}

# All files of a folder with their contents' sums; links are not followed.
fingerprint <- function(folder) {
  files <- list.files(folder, recursive = TRUE, all.files = TRUE)
  tools::md5sum(file.path(folder, files))
}
