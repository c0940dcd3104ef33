test_that("a value comes back as it is, and the call carries the arguments", {
  seen <- NULL
  local_core(function(name, args) {
    seen <<- list(name, args)
    answer(list(a = 1))
  })
  expect_identical(call_core("some entry", list(x = 2)), list(a = 1))
  expect_identical(seen, list("some entry", list(x = 2)))
  expect_identical(call_core("another"), list(a = 1))
  expect_identical(seen[[2]], list())
})

test_that("an envelope that is not ok is an error of the exported function", {
  local_core(function(name, args) {
    list(
      ok = FALSE, code = "data", message = "Bad.", hint = "Mend it.",
      details = list(arg = "x", column = "a")
    )
  })
  exported <- function() call_core("some entry")
  error <- expect_error(exported(), class = "gpukeras_error_data")
  expect_identical(rlang::call_name(error$call), "exported")
  expect_identical(error$arg, "x")
  expect_identical(error$column, "a")
})

test_that("an answer without `ok` is never taken for a value", {
  local_core(function(name, args) list(value = 1, code = "data", message = "", hint = ""))
  expect_error(call_core("some entry"))
})

test_that("the core is imported once and kept", {
  skip_without_tensorflow()
  expect_identical(core(), core())
  expect_identical(the$core, core())
})

test_that("values of each kind come up as R values", {
  skip_without_tensorflow()
  record <- call_core("dataset", list(
    features = list(kind = "array", values = a_matrix(4)), options = list(batch_size = 2)
  ))
  expect_identical(record$plan$rows, 4L)
  expect_identical(record$plan$mode, "resident")
  expect_false(record$weighted)
  expect_null(record$label)
})

test_that("a room has what was asked for; a lone column is a vector", {
  room <- output_buffer()
  expect_identical(room$make(2L, 3L), matrix(0, 2, 3))
  expect_identical(room$take(), matrix(0, 2, 3))
  named <- output_buffer()
  named$make(1L, 2L, list("a", "b"))
  expect_identical(named$take(), matrix(0, 1, 2, dimnames = list(NULL, c("a", "b"))))
  other <- output_buffer()
  other$make(2L, 1L)
  expect_identical(other$take(), c(0, 0))
})

test_that("what the core did not expect passes through as an error", {
  skip_without_tensorflow()
  error <- expect_error(call_core("no such entry point"), "no such entry point")
  expect_false(inherits(error, "gpukeras_error"))
  error <- expect_error(call_core("devices", list(no_such_argument = 1)), "no_such_argument")
  expect_false(inherits(error, "gpukeras_error"))
})

test_that("handles that did not survive are told from living ones", {
  skip_without_tensorflow()
  living <- gpu_dataset(a_matrix(2))$handle
  expect_false(is_dead(living))
  expect_true(is_dead(unserialize(serialize(living, NULL))))
  expect_true(is_dead(NULL))
})

test_that("which Python was chosen is known", {
  expect_identical(name_choice("RETICULATE_PYTHON"), "RETICULATE_PYTHON")
  expect_identical(name_choice("use_python(, required = FALSE)"), "")
  expect_identical(name_choice(NULL), "")
  skip_without_tensorflow()
  facts <- read_python()
  expect_true(file.exists(facts$python))
  expect_match(facts$version, "^3\\.")
  expect_match(facts$numpy, "^[0-9]+\\.")
  expect_identical(facts$reticulate, as.character(utils::packageVersion("reticulate")))
})

test_that("loading starts no Python, listing devices does not start TensorFlow's", {
  skip_without_tensorflow()
  second_session()
  began <- second$began
  expect_false(began$python)
  expect_gt(nrow(began$devices), 0)
  expect_true("CPU:0" %in% began$memory$device)
  expect_identical(began[c("listed", "staged", "built")], list(
    listed = FALSE, staged = FALSE, built = TRUE
  ))
})

test_that("what fails when Python starts does not keep it from starting", {
  skip_without_tensorflow()
  local_core(function(name, args) stop("no NumPy"))
  expect_silent(prepare_python())
})

test_that("library(gpukeras) starts no Python, loads no reticulate, and writes nothing", {
  skip_outside_lane()
  home <- local_bare()
  said <- run_bare(c(
    "before <- list.files(tempdir(), all.files = TRUE, recursive = TRUE)",
    "library(gpukeras)",
    "after <- list.files(tempdir(), all.files = TRUE, recursive = TRUE)",
    "cat(isNamespaceLoaded('reticulate'), identical(before, after), '\\n')",
    # Neither when reticulate comes, which is when a Python is chosen.
    "requireNamespace('reticulate')",
    "cat(reticulate::py_available(initialize = FALSE))"
  ))
  expect_identical(trimws(said[c(1, length(said))]), c("FALSE TRUE", "FALSE"))
  expect_identical(list.files(home, all.files = TRUE, no.. = TRUE), character())
})

# An environment without packages, made once. It knows its Python, not its own place: copies work.
bare_environment <- function() {
  if (is.null(known$environment)) {
    known$environment <- withr::local_tempfile(.local_envir = teardown_env())
    made <- run_python(python_path(), c("-I", "-m", "venv", "--without-pip", known$environment))
    stopifnot(made$status == 0)
  }
  known$environment
}

# A virtual environment in the home folder where reticulate looks for it: without packages, or with
# those of the Python of this session.
an_environment <- function(home, name, packages = FALSE) {
  path <- file.path(home, ".virtualenvs", name)
  dir.create(dirname(path), showWarnings = FALSE)
  stopifnot(system2("cp", c("-a", shQuote(bare_environment()), shQuote(path))) == 0)
  if (packages) {
    site <- c("-c", "import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))")
    writeLines(
      run_python(python_path(), site)$lines,
      file.path(Sys.glob(file.path(path, "lib/python3*/site-packages")), "others.pth")
    )
  }
  normalizePath(path)
}

# core() is where every call takes its Python; TensorFlow, which comes later, is not needed.
test_that("the environment r-gpukeras is taken where nothing else was chosen", {
  skip_on_os("windows")
  skip_without_tensorflow()
  path <- an_environment(local_bare(), "r-gpukeras", packages = TRUE)
  said <- run_bare(c(
    "library(gpukeras)", "invisible(gpukeras:::core())",
    "cat(dirname(dirname(reticulate::py_config()$python)))"
  ))
  expect_identical(normalizePath(said[length(said)]), path)
})

# NumPy is there by its metadata, and its file was cut: the loader of this computer says so.
test_that("an import that fails is a cause with its fix, of every call and of gpu_check()", {
  skip_on_os(c("windows", "mac"))
  skip_without_tensorflow(slow = TRUE)
  path <- an_environment(local_bare(), "r-gpukeras", packages = TRUE)
  suffix <- c("-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
  site <- Sys.glob(file.path(path, "lib/python3*/site-packages"))
  file.create(file.path(site, paste0("numpy", run_python(python_path(), suffix)$lines)))
  withr::local_envvar(RETICULATE_PYTHON = file.path(path, "bin/python"))
  said <- run_bare(c(
    "library(gpukeras)", "condition <- tryCatch(gpu_devices(), error = identity)",
    "cat(class(condition)[1], gsub('[[:space:]]+', ' ', conditionMessage(condition)), sep = '\\n')",
    "cat('\\n')", "check <- gpu_check()",
    "cat(check$verdict, check$cause_id, inherits(check, 'gpu_check'), '\\n')",
    "cat(check$evidence, nrow(as.data.frame(check)) > 1, length(format(check)) > 3)"
  ))
  said <- utils::tail(said[nzchar(said)], 4)
  expect_identical(said[1], "gpukeras_error_runtime_missing")
  expect_snapshot(cat(plain_bullets(gsub("/[^ ]*/numpy[^ :]*", "<numpy>", said[2]))))
  expect_identical(trimws(said[3]), "NOT USED C26 TRUE")
  expect_match(said[4], "file too short.* TRUE TRUE$")
})

test_that("an import of TensorFlow that ends R is not silent", {
  skip_on_os("windows")
  skip_without_tensorflow(slow = TRUE)
  folder <- withr::local_tempdir()
  writeLines(c("import ctypes", "ctypes.string_at(0)"), file.path(folder, "tensorflow.py"))
  withr::local_envvar(PYTHONPATH = folder)
  ended <- start_r(c("library(gpukeras)", "gpu_setup()"))
  expect_false(ended$status == 0)
  # Another process passes R's last words on, and may end after it.
  wait_until(function() any(grepl("gpu_setup()", readLines(ended$err), fixed = TRUE)), seconds = 60)
  said <- readLines(ended$err)
  expect_match(said, "caught segfault", all = FALSE)
  expect_match(said, "gpu_setup()", fixed = TRUE, all = FALSE)
})

# Python runs before gpukeras is loaded, and is the one that was chosen: the environment that would
# be taken else has the packages.
test_that("a chosen Python without packages is kept, and an error with the way out", {
  skip_on_os("windows")
  skip_without_tensorflow()
  home <- local_bare()
  an_environment(home, "r-gpukeras", packages = TRUE)
  path <- an_environment(home, "chosen")
  withr::local_envvar(RETICULATE_PYTHON = file.path(path, "bin/python"))
  said <- run_bare(c(
    "invisible(reticulate::py_config())", "library(gpukeras)", "told <- function(code) {",
    "  condition <- tryCatch(code, error = identity)",
    "  message <- gsub('[[:space:]]+', ' ', conditionMessage(condition))",
    "  cat(class(condition)[1], message, sep = '\\n')", "  cat('\\n')", "}",
    "told(gpu_devices())", "told(gpu_check())", "cat(gpukeras:::the$python_before)"
  ))
  said <- said[nzchar(said)]
  expect_identical(said[c(1, 3)], rep("gpukeras_error_runtime_missing", 2))
  expect_match(said[2], "numpy>=[^ ]* is missing. . Restart R and call install_gpukeras")
  expect_match(said[4], "numpy>=[^ ]* is missing")
  expect_identical(said[5], "TRUE")
})

test_that("use_python() after library(gpukeras) is kept, and its start prepares for TensorFlow", {
  skip_on_os("windows")
  skip_without_tensorflow(slow = TRUE)
  home <- local_bare()
  an_environment(home, "r-gpukeras")
  chosen <- python_path()
  said <- run_bare(c(
    "library(gpukeras)", sprintf("reticulate::use_python('%s', required = TRUE)", chosen),
    "invisible(reticulate::py_config())",
    "invisible(reticulate::import('tensorflow'))",
    "preload <- reticulate::import('gpukeras.backend.cuda_preload')",
    "cat(preload$done$status, '\\n')",
    "invisible(gpukeras:::core())", "cat(reticulate::py_config()$python)"
  ))
  expect_true(trimws(said[length(said) - 1]) %in% c("done", "not needed", "failed"))
  expect_identical(said[length(said)], chosen)
})

test_that("no Python at all is an error that says what to do", {
  skip_outside_lane()
  local_bare()
  withr::local_envvar(RETICULATE_PYTHON = "/no/python")
  said <- run_bare(c(
    "library(gpukeras)", "condition <- tryCatch(gpu_check(), error = identity)",
    "cat(class(condition)[1], conditionMessage(condition), sep = '\\n')"
  ))
  expect_identical(said[1], "gpukeras_error_runtime_missing")
  expect_match(paste(said, collapse = " "), "There is no Python for R: .*/no/python")
  message <- gsub(" +", " ", paste(said[-1], collapse = " ")) # reticulate's part differs by version
  expect_snapshot(cat(sub("(for R: ).*(install_)", "\\1<...> \\2", message)))
})

test_that("of what reticulate says stays the reason", {
  miniconda <- paste(
    "Python shared library not found, Python\nbindings not loaded.",
    "Use reticulate::install_miniconda() if you'd like to\ninstall a Miniconda Python environment."
  )
  reason <- "Python shared library not found, Python bindings not loaded."
  expect_identical(why_no_python(miniconda), reason)
  expect_identical(why_no_python("Error 1 occurred running /p:"), "Error 1 occurred running /p.")
})

test_that("a chosen Python of a wrong version is told where it cannot be loaded", {
  skip_on_os("windows")
  script <- c("#!/bin/sh", "test \"$1\" = -V && echo Python 3.9.18 && exit", "exit 1")
  old <- withr::local_tempfile(lines = script)
  Sys.chmod(old, "755")
  expect_match(advise_python(old), "^RETICULATE_PYTHON is Python 3.9.18; gpukeras takes 3.10 to 3.1")
  expect_match(advise_python(old), "where RETICULATE_PYTHON is not set.$")
  expect_match(advise_python("/no/python"), "^install_gpukeras\\(\\) makes")
  expect_identical(advise_python(""), advise_python("managed"))
})

test_that("requirements are declared when reticulate comes, and once", {
  skip_if(read_reticulate() < "1.41", "reticulate before 1.41 has no py_require()")
  local_bare()
  said <- run_bare(c(
    "library(gpukeras)", "invisible(reticulate::py_available(initialize = FALSE))",
    "declared <- reticulate::py_require()$packages",
    "gpukeras:::declare_python()",
    "stopifnot(identical(reticulate::py_require()$packages, declared))",
    "writeLines(declared)"
  ))
  wanted <- plan_declared("numpy", read_computer(), TRUE)$add
  expect_setequal(said, c("numpy", wanted))
})

test_that("keras3's guess is mended for real, before and after gpukeras; a later choice stays", {
  skip_if_not_installed("keras3")
  skip_if(read_reticulate() < "1.41", "reticulate before 1.41 has no py_require()")
  skip_on_os(c("windows", "mac"))
  skip_if(nzchar(read_computer()$nvidia), "there is an NVIDIA GPU")
  local_bare()
  said <- run_bare(c(
    "library(keras3)", "library(gpukeras)",
    "tensorflow <- function() {",
    "  packages <- grep('^tensorflow', reticulate::py_require()$packages, value = TRUE)",
    "  cat(unique(sub('[<>=].*', '', packages)), Sys.getenv('UV_OVERRIDE'), '\\n')",
    "}",
    "computer <- list(system = 'Linux', machine = 'x86_64', nvidia = '/dev/nvidia0')",
    "tensorflow()",
    "gpukeras:::require_packages(TRUE, computer)", "tensorflow()",
    "use_backend('tensorflow', gpu = FALSE)",
    "gpukeras:::require_packages(FALSE, computer)", "tensorflow()",
    "stopifnot(!reticulate::py_available(initialize = FALSE))"
  ))
  said <- grep("^tensorflow|^Python gets", said, value = TRUE)
  expect_match(said[1], "^tensorflow-cpu")
  expect_match(said[2], "^Python gets tensorflow\\[and-cuda\\] in place of tensorflow-cpu")
  expect_identical(trimws(said[3]), "tensorflow[and-cuda]")
  expect_match(said[4], "^tensorflow-cpu .*never-tensorflow")
})

# Forks --------------------------------------------------------------------------------------------

# What a fork gives, or "hangs" after some seconds: mclapply() itself would wait for it.
in_fork <- function(code, seconds = 600) {
  job <- parallel::mcparallel(code)
  withr::defer(tools::pskill(job$pid, tools::SIGKILL))
  parallel::mccollect(job, wait = FALSE, timeout = seconds)[[1]] %||% "hangs"
}

test_that("a fork's call into Python is refused at once, and names what to use", {
  skip_on_os("windows")
  skip_without_tensorflow()
  train <- gpu_dataset(mpg ~ ., data = mtcars)
  model <- gpu_mlp(train)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  caught <- function(code) tryCatch(code, gpukeras_error_fork = function(condition) condition)
  for (answer in list(
    in_fork(caught(gpu_predict(model, mtcars))),
    in_fork(caught(gpu_fit(model, train, epochs = 1, verbose = FALSE))),
    in_fork(caught(gpu_dataset(mpg ~ ., data = mtcars))),
    in_fork(caught(gpu_setup(seed = 1)))
  )) {
    expect_s3_class(answer, "gpukeras_error_fork")
    expect_match(answer$hint, "gpu_run() or the package mirai", fixed = TRUE)
  }
  each <- suppressWarnings(parallel::mclapply(1:2, function(part) gpu_predict(model, mtcars)))
  for (answer in each) expect_s3_class(attr(answer, "condition"), "gpukeras_error_fork")
  expect_length(gpu_predict(model, mtcars), nrow(mtcars)) # the session itself goes on
})

test_that("gpu_run() works in a fork, as its process is a new one", {
  skip_on_os("windows")
  skip_without_tensorflow(slow = TRUE)
  core()
  expect_identical(in_fork(gpu_run(function() 6 * 7)), 42)
})

test_that("the refusal of a fork reads well", {
  local_core(function(name, args) answer(1))
  before <- the$pid
  withr::defer(the$pid <- before)
  the$pid <- 1L
  expect_snapshot(gpu_memory(), error = TRUE)
})

test_that("TensorFlow or JAX is enough", {
  none <- list(list(wanted = "tensorflow>=2.16", found = ""))
  jax <- list(list(wanted = "jax>=0.6", found = ""))
  keras <- list(list(wanted = "keras>=3.0", found = ""))
  expect_identical(choose_lacking(none, jax), none)
  expect_identical(choose_lacking(none, list()), list())
  expect_identical(choose_lacking(c(none, keras), keras), keras)
  expect_identical(choose_lacking(list(), jax), list())
})

test_that("a session whose Python never ran looks for none when it ends", {
  skip_outside_lane()
  skip_on_os("windows")
  asked <- tempfile()
  python <- withr::local_tempfile(lines = c("#!/bin/sh", paste("touch", asked), "exit 1"))
  Sys.chmod(python, "755")
  env <- c(callr::rcmd_safe_env(), RETICULATE_PYTHON = python)
  end <- function() gpukeras:::as_file("s3://bucket/rows.csv", "x", NULL)
  callr::r(end, libpath = .libPaths(), env = env)
  expect_false(file.exists(asked))
})
