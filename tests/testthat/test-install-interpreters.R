test_that("an interpreter that fits is found, and is the real one", {
  python <- a_starter()
  expect_true(file.exists(python))
  expect_false(any(grepl("/shims/", python)))
  facts <- ask_python(python, c("no-such-package>=1", "pip"))
  expect_identical(facts$failed, "")
  expect_identical(facts$python, python)
  expect_true(is_version_within(facts$version, c("3.10", "3.14")))
  expect_identical(facts$lacking[[1]]$wanted, "no-such-package>=1")
})

test_that("a script in front of an interpreter is seen through", {
  skip_on_os("windows")
  python <- a_starter()
  shim <- file.path(withr::local_tempdir(), "python3")
  writeLines(c("#!/bin/sh", sprintf("exec %s \"$@\"", shQuote(python))), shim)
  Sys.chmod(shim, "755")
  found <- find_interpreter(shim, "numpy", c("3.10", "3.14"))
  expect_identical(found$python, python)
})

test_that("what cannot make an environment is told, each with its reason", {
  skip_on_os("windows")
  folder <- withr::local_tempdir()
  script <- function(name, ...) {
    path <- file.path(folder, name)
    writeLines(c("#!/bin/sh", ...), path)
    Sys.chmod(path, "755")
    path
  }
  broken <- script("broken", "echo 'no such module' >&2", "exit 1")
  silent <- script("silent", "true")
  expect_identical(ask_python(broken, "numpy")$failed, "no such module")
  expect_identical(ask_python(silent, "numpy")$failed, "it says nothing")
  expect_identical(ask_python(file.path(folder, "none"), "numpy")$failed, "it is not there")

  expect_snapshot({
    judge_interpreter(list(failed = "no such module"), c("3.10", "3.14"))
    judge_interpreter(list(failed = "", version = "3.9.2"), c("3.10", "3.14"))
    judge_interpreter(
      list(failed = "", version = "3.12.1", faults = list("has no module venv", "has no library")),
      c("3.10", "3.14")
    )
    judge_interpreter(list(failed = "", version = "3.12.1", faults = list()), c("3.10", "3.14"))
  })
  found <- find_interpreter(broken, "numpy", c("3.10", "3.14"))
  expect_identical(found$python, "")
  expect_snapshot(found$problem, transform = function(lines) gsub(folder, "FOLDER", lines))
})

test_that("programs on the path come first", {
  skip_on_os("windows")
  folder <- withr::local_tempdir()
  file.copy(Sys.which("true"), file.path(folder, "python3"))
  withr::local_path(folder)
  withr::local_envvar(RETICULATE_VIRTUALENV_STARTER = NA)
  found <- list_interpreters()
  expect_identical(found[1], file.path(folder, "python3"))
  expect_true(all(file.exists(found)))
  expect_identical(anyDuplicated(found), 0L)
})

test_that("versions are compared by number", {
  expect_true(is_version_within("3.10.0", c("3.10", "3.14")))
  expect_false(is_version_within("3.9.20", c("3.10", "3.14")))
  expect_false(is_version_within("3.14.0", c("3.10", "3.14")))
  expect_identical(describe_range(c("3.10", "3.14")), "3.10 to 3.13")
})

test_that("an interpreter loads its own library, not the system's of the same name", {
  skip_on_os(c("windows", "mac"))
  python <- a_starter()
  said <- run_python(python, c("-c", "import sys; print(sys.version.split()[0])"))
  expect_identical(said$lines, ask_python(python, "numpy")$version)
  withr::local_envvar(LD_LIBRARY_PATH = "/a b:/c")
  expect_match(own_libraries(python)[["LD_LIBRARY_PATH"]], "/lib:/a b:/c$")
})
