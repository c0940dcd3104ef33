# Runs the tests of the R package, and says which files took longest. Arguments: a filter of files.
arguments <- commandArgs(trailingOnly = TRUE)
results <- testthat::test_dir(
  "tests/testthat",
  package = "gpukeras", load_package = "installed", reporter = "summary",
  filter = if (length(arguments) > 0) arguments[1], stop_on_failure = FALSE
)
tests <- as.data.frame(results)
seconds <- sort(tapply(tests$real, tests$file, sum), decreasing = TRUE)
slowest <- utils::head(seconds, 10)
cat(sprintf("%6.1f s  %s\n", slowest, names(slowest)), sep = "")
cat(sprintf("%6.1f s  %d files\n", sum(seconds), length(seconds)))
quit(status = any(tests$failed > 0 | tests$error))
