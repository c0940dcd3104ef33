# Runs the tests of the R package, and says which files took most. Arguments: a filter of files.
# Seconds are the processor's, of this process and of those it started: how busy the computer is
# does not change them.
arguments <- commandArgs(trailingOnly = TRUE)

# What makes a Python start faster; the sessions that tests start have it too.
lean <- normalizePath("python/tests/support/lean")
paths <- c(lean, Filter(nzchar, Sys.getenv("PYTHONPATH")))
Sys.setenv(PYTHONPATH = paste(paths, collapse = .Platform$path.sep))

processor_s <- function() {
  spent <- function(process) {
    tryCatch(sum(ps::ps_cpu_times(process), na.rm = TRUE), error = function(condition) 0)
  }
  at_work <- ps::ps_children(ps::ps_handle(), recursive = TRUE)
  sum(proc.time()[-3]) + sum(vapply(at_work, spent, 0))
}

# Attributes to a file what was spent since the file before.
Seconds <- R6::R6Class("Seconds", # nolint: object_name_linter.
  inherit = testthat::Reporter,
  public = list(
    seconds = numeric(), before = processor_s(),
    end_file = function() {
      now <- processor_s()
      self$seconds[[self$.file]] <- now - self$before
      self$before <- now
    },
    .file = "",
    start_file = function(file) self$.file <- sub("^test-(.*)\\.R$", "\\1", file)
  )
)

# Counts skips by their reasons: a list of hundreds hides what failed, and takes seconds to write.
Summary <- R6::R6Class("Summary", # nolint: object_name_linter.
  inherit = testthat::SummaryReporter,
  public = list(
    reasons = character(),
    add_result = function(context, test, result) {
      if (!inherits(result, "expectation_skip")) {
        return(super$add_result(context, test, result))
      }
      self$reasons <- c(self$reasons, sub("^Reason: ", "", conditionMessage(result)))
      self$cat_tight("S")
    },
    end_reporter = function() {
      super$end_reporter()
      counts <- sort(table(self$reasons), decreasing = TRUE)
      self$cat_line(paste(sprintf("%6d skipped: %s", counts, names(counts)), collapse = "\n"))
    }
  )
)

seconds <- Seconds$new()
list_of_tests <- testthat::ListReporter$new()
testthat::test_dir(
  "tests/testthat",
  package = "gpukeras", load_package = "installed",
  reporter = testthat::MultiReporter$new(
    list(Summary$new(), list_of_tests, seconds)
  ),
  filter = if (length(arguments) > 0) arguments[1], stop_on_failure = FALSE
)
tests <- as.data.frame(list_of_tests$get_results())
slowest <- utils::head(sort(seconds$seconds, decreasing = TRUE), 10)
cat(sprintf("%6.1f s  %s\n", slowest, names(slowest)), sep = "")
cat(sprintf("%6.1f s  %d files\n", sum(seconds$seconds), length(seconds$seconds)))

# As pytest does: what each test took, of this process, slowest first.
kept <- Sys.getenv("GPUKERAS_SECONDS")
if (nzchar(kept)) {
  took <- order(-tests$user - tests$system)
  said <- sprintf("%.2f\t%s: %s", tests$user + tests$system, tests$file, tests$test)
  writeLines(enc2utf8(said[took]), paste0(kept, ".r"), useBytes = TRUE) # beside pytest's
}

# For tools/sum_up_tests.py: a line a test, with the reason of one that was skipped.
explain_skip <- function(test) {
  found <- Filter(function(result) inherits(result, "expectation_skip"), test$results)
  said <- vapply(found, conditionMessage, "")
  gsub("[[:space:]]+", " ", sub("^Reason: ", "", c(said, "")[1]))
}
kept <- Sys.getenv("GPUKERAS_TESTS_FOUND")
if (nzchar(kept)) {
  ended <- ifelse(tests$skipped, "skipped", "passed")
  ended[tests$failed > 0 | tests$error] <- "failed"
  why <- vapply(list_of_tests$get_results(), explain_skip, "")
  writeLines(enc2utf8(paste(ended, why, sep = "\t")), kept, useBytes = TRUE)
}
quit(status = any(tests$failed > 0 | tests$error))
