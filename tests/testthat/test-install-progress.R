pip_lines <- c(
  "Collecting one<2",
  "  Downloading one-1.0-py3-none-any.whl.metadata (4.5 kB)",
  "Collecting two",
  "Downloading one-1.0-py3-none-any.whl (1.5 kB)",
  "Installing collected packages: two, three, one"
)

test_that("pip's lines tell what is collected, downloaded and installed", {
  scratch <- withr::local_tempdir()
  dir.create(file.path(scratch, "pip-unpack-x"))
  read <- function(lines, installed = character()) read_pip(pip_lines[lines], scratch, installed)
  collecting <- list(verb = "collecting", units = "packages", step = 0L)
  expect_identical(read(0), collecting)
  expect_identical(read(1:3), utils::modifyList(collecting, list(step = 2L)))
  downloading <- list(verb = "downloading one", units = "bytes", step = 0, steps = 1500)
  expect_identical(read(1:4), downloading)
  writeBin(raw(700), file.path(scratch, "pip-unpack-x", "one-1.0-py3-none-any.whl"))
  expect_identical(read(1:4)$step, 700)
  installing <- list(verb = "installing", units = "packages", step = 1L, steps = 3L)
  expect_identical(read(1:5, "two-1.0.dist-info"), installing)
  expect_identical(read(1:5, letters)$step, 3L)
})

test_that("sizes are read as pip writes them", {
  sizes <- vapply(c("12 bytes", "4.5 kB", "230.1 MB", "1.2 GB"), parse_size, 0, USE.NAMES = FALSE)
  expect_equal(sizes, c(12, 4500, 230.1e6, 1.2e9))
  expect_null(parse_size("about 12"))
})

test_that("a bar counts what is installed, and a failure says what pip said", {
  skip_outside_lane()
  skip_on_os("windows")
  withr::local_options(
    cli.dynamic = TRUE, cli.progress_show_after = 0, cli.progress_handlers_force = "logger"
  )
  folder <- normalizePath(withr::local_tempdir())
  wheels <- write_wheels(file.path(folder, "wheels"), "gk-one" = c("1.0", "gk-two"), "gk-two" = "1")
  install <- function(packages) {
    suppressMessages(install_gpukeras(
      file.path(folder, "own"), python = a_starter(), wheels = wheels, packages = packages
    ))
  }
  lines <- capture.output(install("gk-one"))
  ends <- sub("^\\S+ \\S+ ", "", grep("terminated", lines, value = TRUE))
  expect_match(ends[length(ends)], "^[0-2]/2 terminated")
  found <- list_installed(environment_python(file.path(folder, "own")))
  expect_true(all(c("gk_one-1.0.dist-info", "gk_two-1.dist-info") %in% found))
  capture.output(expect_error(
    install("gk-absent"), "No matching distribution found for gk-absent",
    class = "gpukeras_error_runtime_missing"
  ))
})

test_that("a step that is interrupted ends its process", {
  skip_on_os("windows")
  withr::local_options(cli.dynamic = TRUE, cli.progress_show_after = 3600)
  withr::defer(setTimeLimit())
  file <- withr::local_tempfile()
  endless <- sprintf("echo $$ > '%s'; trap '' INT TERM; while :; do sleep 0.05; done", file)
  expect_error(
    {
      setTimeLimit(elapsed = 2)
      run_step("/bin/sh", c("-c", endless), TRUE, environment())
    },
    "time limit"
  )
  setTimeLimit()
  expect_false(tools::pskill(scan(file, quiet = TRUE), 0))
})
