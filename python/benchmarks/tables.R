# The tables of the benchmark, from the records of its runs.

other_models <- c("batchnorm", "lstm", "cnn")
titles <- c(
  dense_small = "dense 64 and 10, batch 32",
  dense_wide = "dense 64 and 10, batch 256",
  batchnorm = "dense 128 and 64, BatchNorm, AdamW, clipnorm, 64,000 x 64, batch 64",
  lstm = "LSTM 32, 12,800 x 30 x 8, batch 64",
  cnn = "CNN 16 and 32, 6,400 x 32 x 32 x 3, batch 64"
)

print_tables <- function(runs, options) {
  cat(sprintf("\n%s, %d cores, %s\n", R.version.string, parallel::detectCores(), Sys.Date()))
  if (options$quick) {
    cat("--quick: a quarter of the rows, 4 epochs, one run: no promise can be read from this.\n")
  }
  for (case in names(cases)) print_case(runs, case, options)
  print_engines(runs)
  cat(notes, sep = "\n")
}

# Against Keras from R ------------------------------------------------------------------------------

print_case <- function(runs, case, options) {
  table <- lapply(names(methods), summarise_method, runs = pick(runs, case)) |> do.call(what = rbind)
  size <- cases[[case]]
  cat(sprintf(
    "\n%s x %d, %s: seconds from the R matrix to %d epochs\n",
    format(size$rows * options$share, big.mark = ","), size$columns, titles[[case]], options$epochs
  ))
  print(format_case(table), row.names = FALSE, right = FALSE)
  print_promises(table, size)
}

summarise_method <- function(name, runs) {
  timed <- pick(runs, method = name, measure = "time")
  used <- pick(runs, method = name, measure = "memory")
  data.frame(
    method = name,
    total_s = middle(timed, function(run) run$total_s),
    warm_s = middle(timed, warm_epoch),
    memory = middle(used, function(run) run$extra_bytes / run$matrix_bytes),
    loss = middle(timed, function(run) run$loss[length(run$loss)]),
    engine = paste(unique(unlist(lapply(timed, `[[`, "engine"))), collapse = ", "),
    runs = length(timed),
    problem = describe_problem(name, c(timed, used))
  )
}

describe_problem <- function(name, runs) {
  missing <- missing_packages(methods[[name]])
  if (length(missing) > 0) {
    return(paste("not installed:", paste(missing, collapse = ", ")))
  }
  if (any(lengths(lapply(runs, `[[`, "error")) > 0)) "failed" else ""
}

format_case <- function(table) {
  against <- table[table$method == "keras", ]
  data.frame(
    method = vapply(table$method, function(name) methods[[name]]$label, ""),
    total = number(table$total_s), faster = times(against$total_s / table$total_s),
    `warm epoch` = number(table$warm_s, 3), faster = times(against$warm_s / table$warm_s),
    memory = number(table$memory, 2), loss = number(table$loss, 3), engine = table$engine,
    runs = paste(table$runs, table$problem), check.names = FALSE
  )
}

# What gpukeras promises for the engine it chooses.
print_promises <- function(table, size) {
  against <- table[table$method == "keras", ]
  chosen <- table[table$method == "auto", ]
  say_promise("warm epoch", against$warm_s / chosen$warm_s, size$warm, "times faster")
  say_promise("total", against$total_s / chosen$total_s, size$total, "times faster")
  say_promise("extra memory", chosen$memory, 0.6, "of the matrix", most = TRUE)
}

say_promise <- function(what, found, promised, unit, most = FALSE) {
  if (length(found) == 0 || is.na(found)) {
    return(invisible())
  }
  kept <- if (most) found <= promised else found >= promised
  cat(sprintf(
    "  %s: %.2f %s, promised at %s %g: %s\n",
    what, found, unit, if (most) "most" else "least", promised, if (kept) "kept" else "BROKEN"
  ))
}

# The chosen engine against the best ----------------------------------------------------------------

print_engines <- function(runs) {
  models <- intersect(names(titles), unlist(lapply(runs, `[[`, "case")))
  table <- lapply(models, compare_engines, runs = runs) |> do.call(what = rbind)
  cat("\nThe chosen engine against the best of the three: seconds of a warm epoch\n")
  print(table, row.names = FALSE, right = FALSE)
  cat("  promised: auto at most 1.10 of the best\n")
}

compare_engines <- function(model, runs) {
  names <- if (model %in% other_models) engines else c(paste0("engine_", engines[1:3]), "auto")
  picked <- lapply(names, function(name) pick(runs, model, name, c("time", "engine")))
  warm <- vapply(picked, middle, 0, of = warm_epoch) |> stats::setNames(engines)
  best <- min(warm[1:3], Inf, na.rm = TRUE)
  chosen <- unique(unlist(lapply(picked[[4]], `[[`, "engine")))
  cells <- data.frame(model = titles[[model]], t(number(warm, 3)))
  cbind(cells, `auto/best` = number(warm[["auto"]] / best, 2), chosen = paste(chosen, collapse = ", "))
}

# Help ----------------------------------------------------------------------------------------------

pick <- function(runs, case = NULL, method = NULL, measure = NULL) {
  fits <- function(run, name, wanted) is.null(wanted) || run[[name]] %in% wanted
  Filter(function(run) {
    fits(run, "case", case) && fits(run, "method", method) && fits(run, "measure", measure)
  }, runs)
}

# The median over the runs that did not fail; NA if there is none.
middle <- function(runs, of) {
  values <- lapply(Filter(function(run) is.null(run$error), runs), of) |> unlist()
  if (is.null(values)) NA_real_ else stats::median(as.numeric(values))
}

# The first epoch traces, compiles and tries engines; the second may still.
warm_epoch <- function(run) {
  stats::median(utils::tail(run$epoch_s, max(1, length(run$epoch_s) - 2)))
}

number <- function(x, digits = 1) ifelse(is.na(x), "-", sprintf("%.*f", digits, x))

times <- function(x) ifelse(is.na(x), "-", sprintf("%.1fx", x))

notes <- c(
  "",
  "total: building the dataset, staging, tracing, compiling and all epochs. Not in it: starting R",
  "  and Python, importing TensorFlow, making the data and the model.",
  "warm epoch: median of the epochs from the third on. Medians over runs.",
  "faster: than Keras fit() called from R on the same matrix.",
  "memory: growth of the process's peak resident memory (two epochs, a run of its own) as a share",
  "  of the R matrix: staged and converted copies, blocks or buffers of rows, compiled programs,",
  "  what the allocators keep. Not in it: TensorFlow, XLA's compiler and their threads, which a fit",
  "  on a few batches brought in before, and the matrix itself.",
  "loss: after the last epoch; near each other, they show that the same was trained (the limit has",
  "  no dropout and drops the short last batch)."
)
