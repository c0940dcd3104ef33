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

test_that("a program that says that there is none does not run", {
  skip_on_os("windows")
  shim <- withr::local_tempfile(lines = c("#!/bin/sh", "echo 'command not found' >&2", "exit 127"))
  Sys.chmod(shim, "755")
  expect_identical(run_python(shim, "-V"), list(status = 127L, lines = "it cannot be run"))
  expect_identical(ask_interpreter(shim, "numpy")$failed, "it cannot be run")
})

test_that("a Python that is too old for the core's code is told by its version", {
  skip_on_os("windows")
  folder <- withr::local_tempdir()
  interpreter <- function(version) {
    lines <- c("#!/bin/sh", sprintf("test \"$1\" = -V && echo Python %s && exit", version), "exit 1")
    path <- file.path(folder, version)
    writeLines(lines, path)
    Sys.chmod(path, "755")
    judge_interpreter(ask_interpreter(path, "numpy"), c("3.10", "3.14"))
  }
  expect_identical(interpreter("3.9.18"), "is Python 3.9.18")
  expect_identical(interpreter("2.7.18"), "is Python 2.7.18")
  expect_identical(interpreter("3.10.1+"), "does not run (it says nothing)")
  expect_identical(interpreter("none"), "does not run (it says nothing)")
})

test_that("programs on the path come first", {
  skip_on_os("windows")
  folder <- withr::local_tempdir()
  file.copy(Sys.which("true"), file.path(folder, "python3"))
  file.symlink("python3", file.path(folder, "python3.11"))
  withr::local_path(folder)
  withr::local_envvar(RETICULATE_VIRTUALENV_STARTER = NA)
  found <- list_interpreters()
  expect_identical(found[1], file.path(folder, "python3"))
  expect_true(all(file.exists(found)))
  expect_identical(anyDuplicated(normalizePath(found)), 0L)
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
