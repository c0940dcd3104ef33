# Figures from the records of runs: medians over those that did not fail, NA where there are none.

pick <- function(runs, case, method = NULL, measure = NULL) {
  fits <- function(run, name, wanted) is.null(wanted) || run[[name]] %in% wanted
  Filter(function(run) {
    fits(run, "case", case) && fits(run, "method", method) && fits(run, "measure", measure)
  }, runs)
}

middle <- function(runs, of) {
  values <- unlist(lapply(Filter(function(run) is.null(run$error), runs), of))
  if (is.null(values)) NA_real_ else stats::median(as.numeric(values))
}

# The first epoch traces, compiles and tries engines; the second may still. Where a part of the rows
# was trained, the seconds are those of all.
warm_epoch <- function(run) {
  later <- utils::tail(run$epoch_s, max(1, length(run$epoch_s) - 2))
  stats::median(later) * run$full_rows / run$rows
}

warm_s <- function(runs, case, method) middle(pick(runs, case, method, "time"), warm_epoch)

# Only runs of all rows and epochs tell. `first`: of first sessions alone, which compile what later
# ones find on disk, or of later ones alone; NULL for both.
total_s <- function(runs, case, method, epochs, first = NULL) {
  timed <- pick(runs, case, method, "time")
  if (!is.null(first)) timed <- Filter(function(run) (run$round == 1) == first, timed)
  middle(timed, function(run) {
    if (run$rows == run$full_rows && run$epochs == epochs) run$total_s
  })
}

# The faster one of several methods, named; those that were not measured are left out.
fastest <- function(runs, case, methods) {
  found <- vapply(methods, function(name) warm_s(runs, case, name), 0)
  if (all(is.na(found))) stats::setNames(NA_real_, "") else sort(found)[1]
}

# The numbers of steps that repetitions found best.
best_steps <- function(runs, case, method) {
  runs <- pick(runs, case, method, "time")
  paste(unique(unlist(lapply(runs, `[[`, "steps"))), collapse = ", ")
}

memory_share <- function(runs, case, method) {
  middle(pick(runs, case, method, "memory"), function(run) run$extra_bytes / run$data_bytes)
}

# The fastest of the engines, named; NA unless all have run.
best_engine <- function(runs, case) {
  names <- paste0("engine_", c("keras", "graph_loop", "compiled"))
  found <- vapply(names, function(name) warm_s(runs, case, name), 0)
  if (anyNA(found)) stats::setNames(NA_real_, "") else sort(found)[1]
}

# Repetitions may choose differently.
all_engines <- function(runs) paste(unique(unlist(lapply(runs, `[[`, "engine"))), collapse = ", ")

number <- function(x, digits = 2) ifelse(is.na(x), "-", sprintf("%.*f", digits, x))
