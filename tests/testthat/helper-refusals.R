# Tables of calls that are refused, each with the error's code and what its message must name.
# The whole messages are snapshots.

case <- function(code, names, call) {
  list(code = code, names = names, call = substitute(call))
}

# Runs a table as one test. `hide` takes from the snapshot what depends on the computer; `needs` is
# a package.
expect_refused <- function(cases, hide = NULL, needs = "testthat", env = parent.frame()) {
  more <- length(cases) - 1L
  many <- if (more > 0) sprintf("and %d more are", more) else "is"
  test_that(paste(names(cases)[1], many, "refused"), {
    skip_without_tensorflow()
    skip_if_not_installed(needs)
    said <- Map(expect_refusal, names(cases), cases, list(env))
    expect_snapshot(writeLines(unlist(said)), transform = hide)
  })
}

# What is wrong with one case fails under its title, and the others run on.
expect_refusal <- function(title, case, env) {
  error <- tryCatch(eval(case$call, env), error = identity)
  classes <- c("gpukeras_error", paste0("gpukeras_error_", case$code))
  told <- toString(class(error))
  expect(inherits(error, "error"), paste0(title, ": no error"))
  expect(all(classes %in% class(error)), sprintf("%s: an error of %s", title, told))
  named <- paste(c(error$message, error$body), collapse = " ")
  expect(grepl(case$names, named, fixed = TRUE), sprintf("%s: %s", title, named))
  c(title, paste0("  ", strsplit(rlang::cnd_message(error, prefix = TRUE), "\n")[[1]]))
}
