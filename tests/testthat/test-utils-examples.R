# tools/examples.R runs the examples, in `make doc`; here is what they must look like to be run.

# What a session says for each of the environments, in which it starts no Python.
in_session <- function(environments) {
  ask <- function(env) {
    do.call(Sys.setenv, as.list(env))
    core <- asNamespace("gpukeras")
    list(
      can_run = core$can_run_examples(), python = core$examples_python(),
      started = reticulate::py_available(initialize = FALSE)
    )
  }
  callr::r(
    function(ask, environments) lapply(environments, ask), list(ask, environments),
    libpath = .libPaths(), env = callr::rcmd_safe_env()
  )
}

test_that("examples run where Python has the modules", {
  skip_without_tensorflow()
  expect_true(can_run_examples())
  expect_true(can_run_examples("json"))
  expect_false(can_run_examples(c("tensorflow", "no_such_module")))
})

test_that("under R CMD check no example starts a server, and little else is started or left", {
  settings <- c(
    "OMP_THREAD_LIMIT", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
    "GPUKERAS_XLA_CACHE", "GPUKERAS_CLUSTER_CACHE", "KERAS_HOME"
  )
  withr::local_envvar(stats::setNames(rep(NA, 7), settings))
  withr::local_envvar("_R_CHECK_PACKAGE_NAME_" = NA)
  settle_under_check()
  expect_true(all(Sys.getenv(settings) == ""))
  withr::local_envvar("_R_CHECK_PACKAGE_NAME_" = "another", OMP_NUM_THREADS = "1")
  settle_under_check()
  told <- unname(Sys.getenv(settings))
  expect_identical(told[1:6], c("2", "1", "2", "2", "off", "off"))
  expect_identical(dirname(told[7]), tempdir())
  settle_under_check() # as a process does that this session has started
  expect_identical(unname(Sys.getenv(settings)), told)
  expect_false(can_run_examples(processes = TRUE))
})

test_that("examples do not run with versions that gpukeras itself refuses", {
  skip_without_tensorflow(slow = TRUE)
  least <- sub("([a-z]+)>=([0-9.]+).*", "\\1 \\2", choose_least())
  for (one in strsplit(least, " ")) {
    folder <- withr::local_tempdir()
    info <- file.path(folder, sprintf("%s-1.0.dist-info", one[1]))
    dir.create(info)
    writeLines(c("Metadata-Version: 2.1", paste("Name:", one[1]), "Version: 1.0"), file.path(info, "METADATA"))
    withr::with_envvar(c(PYTHONPATH = folder), expect_false(can_run_examples(), info = one[1]))
  }
})

test_that("examples run by the Python that is chosen or there, without starting it", {
  skip_without_tensorflow(slow = TRUE)
  skip_on_os("windows")
  nothing <- withr::local_tempdir()
  root <- withr::local_tempdir()
  own <- file.path(root, "r-gpukeras", "bin", "python")
  dir.create(dirname(own), recursive = TRUE)
  file.symlink(python_path(), own)
  choose <- function(chosen, root = nothing) {
    c(RETICULATE_PYTHON = chosen, WORKON_HOME = root, VIRTUAL_ENV = "", CONDA_PREFIX = "")
  }
  left_out <- c("", "managed", "/no/such/python", nothing)
  told <- in_session(c(
    lapply(left_out, choose), list(choose("", root), choose(python_path(), root))
  ))
  for (at in seq_along(left_out)) expect_false(told[[at]]$can_run, info = left_out[at])
  expect_identical(told[[5]]$python, own) # an environment of gpukeras, where nothing is chosen
  expect_identical(told[[6]][c("can_run", "python")], list(can_run = TRUE, python = python_path()))
  for (one in told) expect_false(one$started)
})

test_that("each help page of a function has examples, and none is for interactive sessions only", {
  skip_outside_lane()
  folder <- testthat::test_path("..", "..", "man")
  testthat::skip_if_not(dir.exists(folder), "the sources are not there")
  pages <- lapply(Sys.glob(file.path(folder, "*.Rd")), tools::parse_Rd)
  has <- function(page, tag) any(vapply(page, attr, "", "Rd_tag") == tag)
  name <- function(page) as.character(page[[which(vapply(page, attr, "", "Rd_tag") == "\\name")]])
  aliases <- function(page) {
    as.character(unlist(page[vapply(page, attr, "", "Rd_tag") == "\\alias"]))
  }
  documents <- function(page) any(aliases(page) %in% getNamespaceExports("gpukeras"))
  usable <- Filter(function(page) has(page, "\\usage") && documents(page), pages)
  expect_gt(length(usable), 30)
  bare <- Filter(function(page) !has(page, "\\examples"), usable)
  expect_identical(vapply(bare, name, ""), character())
  for (page in Filter(function(page) has(page, "\\examples"), pages)) {
    code <- paste(unlist(page[vapply(page, attr, "", "Rd_tag") == "\\examples"]), collapse = "")
    expect_no_match(code, "interactive()", fixed = TRUE, info = name(page))
    expect_no_match(code, "\\dontrun", fixed = TRUE, info = name(page))
  }
})
