# tools/examples.R runs the examples, in `make doc`; here is what they must look like to be run.

in_session <- function(code, env) {
  callr::r(code, libpath = .libPaths(), env = c(callr::rcmd_safe_env(), env))
}

test_that("examples run where Python has the modules", {
  skip_without_tensorflow()
  expect_true(can_run_examples())
  expect_true(can_run_examples("json"))
  expect_false(can_run_examples(c("tensorflow", "no_such_module")))
})

test_that("examples are left out where no Python is chosen, or it is not there", {
  skip_where_fast()
  look <- function() {
    c(asNamespace("gpukeras")$can_run_examples(), reticulate::py_available(initialize = FALSE))
  }
  nothing <- withr::local_tempdir()
  for (chosen in c("", "managed", "/no/such/python", nothing)) {
    env <- c(RETICULATE_PYTHON = chosen, WORKON_HOME = nothing, VIRTUAL_ENV = "", CONDA_PREFIX = "")
    expect_identical(in_session(look, env), c(FALSE, FALSE), info = chosen)
  }
})

test_that("an environment of gpukeras is taken where nothing else is chosen", {
  skip_without_tensorflow()
  skip_on_os("windows")
  root <- withr::local_tempdir()
  dir.create(file.path(root, "r-gpukeras", "bin"), recursive = TRUE)
  file.symlink(python_path(), file.path(root, "r-gpukeras", "bin", "python"))
  look <- function() asNamespace("gpukeras")$examples_python()
  env <- c(RETICULATE_PYTHON = "", WORKON_HOME = root, VIRTUAL_ENV = "", CONDA_PREFIX = "")
  expect_identical(in_session(look, env), file.path(root, "r-gpukeras", "bin", "python"))
})

test_that("the Python that was chosen is asked without being started", {
  skip_without_tensorflow()
  look <- function() c(asNamespace("gpukeras")$can_run_examples(), reticulate::py_available())
  expect_identical(in_session(look, c(RETICULATE_PYTHON = python_path())), c(TRUE, FALSE))
})

test_that("vignettes run where Python and the packages are, and not on CRAN", {
  testthat::skip_if_not_installed("knitr")
  withr::local_envvar(NOT_CRAN = "true")
  before <- knitr::opts_chunk$get()
  withr::defer(knitr::opts_chunk$restore(before))
  set_up_vignette(packages = "no.such.package", fig.height = 3)
  expect_false(knitr::opts_chunk$get("eval"))
  expect_identical(knitr::opts_chunk$get("fig.height"), 3)
  skip_without_tensorflow()
  set_up_vignette(packages = character())
  expect_true(knitr::opts_chunk$get("eval"))
  withr::local_envvar(NOT_CRAN = NA)
  set_up_vignette(packages = character())
  expect_false(knitr::opts_chunk$get("eval"))
})

test_that("each help page of a function has examples, and none is for interactive sessions only", {
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
