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
      expect_match(paste(c(error$message, error$body), collapse = " "), case$names, fixed = TRUE)
      # The call is not made a second time for its snapshot: it raises what it has raised.
      raised <- new.env(parent = env)
      raised[[rlang::call_name(case$call)]] <- function(...) rlang::cnd_signal(error)
      rlang::inject(expect_snapshot(!!case$call, error = TRUE, transform = !!hide), raised)
    })
  }
}
