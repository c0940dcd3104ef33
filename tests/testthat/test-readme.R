# What README, vignettes and cheat sheet show is what runs. They lie beside the package's sources,
# so that an installed package has nothing to read here.

source_file <- function(...) {
  path <- testthat::test_path("..", "..", ...)
  testthat::skip_if_not(file.exists(path), paste(file.path(...), "is not there"))
  path
}

# The code blocks of a Markdown file, each with its language and lines.
code_blocks <- function(path) {
  lines <- readLines(path, encoding = "UTF-8")
  fences <- grep("^```", lines)
  starts <- fences[c(TRUE, FALSE)]
  ends <- fences[c(FALSE, TRUE)]
  Map(function(start, end) {
    list(header = sub("^```", "", lines[[start]]), lines = lines[seq_len(end - start - 1) + start])
  }, starts, ends)
}

blocks_in <- function(blocks, header) {
  unlist(lapply(blocks, function(block) if (block$header == header) block$lines))
}

vignettes <- function() {
  testthat::skip_if_not(file.exists(source_file("vignettes", "gpukeras.Rmd.orig")))
  Sys.glob(testthat::test_path("..", "..", "vignettes", "*.Rmd.orig"))
}

functions_said <- function(lines) {
  unique(unlist(regmatches(lines, gregexpr("(?<!remotes::)\\b(gpu|schedule|install)_[a-z_]+(?=\\()", lines, perl = TRUE))))
}

# By day in this session: a fresh one costs the start of another TensorFlow.
test_that("the R code of README.md runs, in order, and leaves no files", {
  skip_without_tensorflow()
  testthat::skip_if_not_installed("ggplot2")
  code <- blocks_in(code_blocks(source_file("README.md")), "r")
  expect_gt(length(code), 5)
  folder <- withr::local_tempdir()
  script <- withr::local_tempfile(lines = c("options(warn = 2)", code), fileext = ".R")
  said <- if (is_nightly()) {
    run <- callr::rscript(
      script, wd = folder, show = FALSE, fail_on_status = FALSE,
      env = c(callr::rcmd_safe_env(), RETICULATE_PYTHON = python_path())
    )
    expect_identical(run$status, 0L, info = run$stderr)
    run$stdout
  } else {
    withr::local_options(warn = 0)
    withr::local_dir(folder)
    capture.output(source(script, local = new.env(parent = globalenv()), print.eval = TRUE))
  }
  expect_match(paste(said, collapse = "\n"), "GPU: ", fixed = TRUE)
  expect_identical(dir(folder), character())
})

test_that("README.md is short, and what it links to and shows is there", {
  lines <- readLines(source_file("README.md"), encoding = "UTF-8")
  expect_lte(length(lines), 190)
  links <- unlist(regmatches(lines, gregexpr("(?<=\\]\\()[^)]+(?=\\))", lines, perl = TRUE)))
  pictures <- file.path("man", "figures", c("check.png", "history.png", "many.png"))
  expect_true(all(c("SECURITY.md", "CONTRIBUTING.md", pictures) %in% links))
  for (link in links) expect_true(file.exists(source_file(link)), info = link)
  expect_lt(max(file.size(vapply(pictures, source_file, ""))), 2.5e5)
  named <- regmatches(lines, gregexpr("(?<=vignette\\(\")[a-z-]+", lines, perl = TRUE))
  expect_identical(setdiff(unlist(named), sub("[.]Rmd[.]orig$", "", basename(vignettes()))), character())
})

test_that("help pages describe each argument", {
  skip_outside_lane()
  package <- dirname(source_file("man"))
  expect_identical(format(tools::checkDocFiles(dir = package)), character())
})

test_that("the shell code of README.md is make's targets", {
  commands <- blocks_in(code_blocks(source_file("README.md")), "sh")
  makefile <- readLines(source_file("Makefile"))
  expect_match(commands, "^make [a-z-]+( |$)")
  targets <- sub("^make ([a-z-]+).*", "\\1", commands)
  described <- sub(":.*", "", grep("^[a-z-]+:.*## ", makefile, value = TRUE))
  expect_identical(setdiff(targets, described), character())
})

test_that("each R block of a vignette runs when it is built", {
  for (path in vignettes()) {
    headers <- vapply(code_blocks(path), `[[`, "", "header")
    idle <- grepl("eval *= *(FALSE|F)\\b", headers) | headers %in% c("r", "R")
    expect_identical(headers[idle], character(), info = basename(path))
  }
})

test_that("the code of Get started takes 40 lines", {
  blocks <- code_blocks(source_file("vignettes", "gpukeras.Rmd.orig"))
  shown <- Filter(function(block) !grepl("include = FALSE", block$header), blocks)
  lines <- unlist(lapply(shown, `[[`, "lines"))
  expect_lte(sum(grepl("\\S", lines) & !startsWith(lines, "#")), 40)
})

test_that("functions that README, vignettes and cheat sheet call are there", {
  skip_outside_lane()
  files <- c(
    source_file("README.md"), source_file("inst", "cheatsheet", "cheatsheet.html"), vignettes()
  )
  for (path in files) {
    said <- functions_said(readLines(path, encoding = "UTF-8"))
    expect_identical(setdiff(said, getNamespaceExports("gpukeras")), character(), info = path)
  }
})

test_that("cheat sheet and Get started show every function there is", {
  ours <- grep("^(gpu|schedule|install)_", getNamespaceExports("gpukeras"), value = TRUE)
  files <- c(
    source_file("inst", "cheatsheet", "cheatsheet.html"), source_file("vignettes", "gpukeras.Rmd.orig")
  )
  for (path in files) {
    said <- functions_said(readLines(path, encoding = "UTF-8"))
    expect_identical(sort(setdiff(ours, c(said, "gpu_mlp_fit"))), character(), info = path)
  }
})

test_that("the package can be cited", {
  expect_match(format(utils::citation("gpukeras"), style = "text"), "gpukeras", all = FALSE)
})
