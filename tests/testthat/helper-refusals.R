# Tables of calls that are refused, each with the error's code and what its message must name.
# The whole messages are snapshots.

case <- function(code, names, call) {
  list(code = code, names = names, call = substitute(call))
}

# Runs a table. `hide` takes from a snapshot what depends on the computer; `needs` is a package.
expect_refused <- function(cases, hide = NULL, needs = "testthat", env = parent.frame()) {
  for (title in names(cases)) {
    case <- cases[[title]]
    test_that(paste(title, "is refused"), {
      skip_without_tensorflow()
      skip_if_not_installed(needs)
      class <- paste0("gpukeras_error_", case$code)
      error <- expect_error(eval(case$call, env), class = class)
      expect_s3_class(error, "gpukeras_error")
      expect_match(one_line(error), case$names, fixed = TRUE)
      rlang::inject(expect_snapshot(!!case$call, error = TRUE, transform = !!hide), env)
    })
  }
}
