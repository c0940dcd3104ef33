# The tables of the benchmark, from the records of its runs. `plan` says what was to be run.

titles <- c(
  dense_small = "dense 64 and 10, batch 32",
  dense_wide = "dense 64 and 10, batch 256",
  batchnorm = "BatchNorm, AdamW, clipnorm, batch 64",
  lstm = "LSTM 32, batch 64",
  cnn = "two convolutions, batch 64"
)

print_tables <- function(runs, plan) {
  cat(sprintf("\n%s, %d cores, %s\n", R.version.string, parallel::detectCores(), Sys.Date()))
  if (plan$quick) {
    cat("--quick: a quarter of the rows, 4 epochs, one run: no promise can be judged by this.\n")
  }
  for (case in names(plan$cases)) print_case(runs, case, plan)
  print_engines(runs, plan)
  cat(notes, sep = "\n")
}

# Against Keras from R ----------------------------------------------------------------------------

print_case <- function(runs, case, plan) {
  rows <- lapply(names(plan$methods), summarise_method, pick(runs, case), plan)
  table <- do.call(rbind, rows)
  size <- plan$cases[[case]]
  count <- format(size$rows * plan$share, big.mark = ",", scientific = FALSE)
  cat(sprintf(
    "\n%s x %d, %s: seconds from the R matrix to %d epochs\n",
    count, size$columns, titles[[case]], plan$epochs
  ))
  print(format_case(table), row.names = FALSE, right = FALSE)
  if (!plan$quick) print_promises(table, size)
}

summarise_method <- function(name, runs, plan) {
  timed <- pick(runs, method = name, measure = "time")
  used <- pick(runs, method = name, measure = "memory")
  data.frame(
    method = name, label = plan$methods[[name]]$label,
    total_s = middle(timed, function(run) run$total_s),
    warm_s = middle(timed, warm_epoch),
    memory = middle(used, function(run) run$extra_bytes / run$matrix_bytes),
    loss = middle(timed, function(run) run$loss[length(run$loss)]),
    engine = all_engines(timed),
    runs = describe_runs(timed, c(timed, used), plan$absent[[name]])
  )
}

describe_runs <- function(timed, runs, absent) {
  failed <- sum(vapply(runs, function(run) !is.null(run$error), logical(1)))
  if (length(absent) > 0) {
    sprintf("not installed: %s", paste(absent, collapse = ", "))
  } else if (failed > 0) {
    sprintf("%d, %d failed", length(timed), failed)
  } else {
    as.character(length(timed))
  }
}

format_case <- function(table) {
  against <- table[table$method == "keras", ]
  data.frame(
    method = table$label,
    total = number(table$total_s), faster = times(against$total_s / table$total_s),
    `warm epoch` = number(table$warm_s, 3), faster = times(against$warm_s / table$warm_s),
    memory = number(table$memory, 2), loss = number(table$loss, 3), engine = table$engine,
    runs = table$runs, check.names = FALSE
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
  if (is.na(found)) {
    return(invisible())
  }
  kept <- if (most) found <= promised else found >= promised
  cat(sprintf(
    "  %s: %.2f %s, promised at %s %g: %s\n",
    what, found, unit, if (most) "most" else "least", promised, if (kept) "kept" else "BROKEN"
  ))
}

# The chosen engine against the best --------------------------------------------------------------

# The cases of the first tables need no runs of their own: their methods are the engines.
print_engines <- function(runs, plan) {
  table <- do.call(rbind, lapply(c(names(plan$cases), plan$models), compare_engines, runs, plan))
  cat("\nThe chosen engine (auto) against the best of the three: seconds of a warm epoch\n")
  print(table, row.names = FALSE, right = FALSE)
  if (!plan$quick) cat("  promised: auto/best at most 1.10\n")
}

compare_engines <- function(model, runs, plan) {
  names <- if (model %in% plan$models) plan$engines else paste0("engine_", plan$engines)
  names[4] <- "auto"
  picked <- lapply(names, function(name) pick(runs, model, name, c("time", "engine")))
  warm <- vapply(picked, middle, 0, of = warm_epoch)
  best <- if (anyNA(warm[1:3])) NA else min(warm[1:3])
  cells <- as.list(number(warm, 3)) |> stats::setNames(plan$engines)
  data.frame(
    model = titles[[model]], cells, `auto/best` = number(warm[4] / best, 2),
    chosen = all_engines(picked[[4]]), check.names = FALSE
  )
}

# Help --------------------------------------------------------------------------------------------

pick <- function(runs, case = NULL, method = NULL, measure = NULL) {
  fits <- function(run, name, wanted) is.null(wanted) || run[[name]] %in% wanted
  Filter(function(run) {
    fits(run, "case", case) && fits(run, "method", method) && fits(run, "measure", measure)
  }, runs)
}

# The median over the runs that did not fail; NA if there is none.
middle <- function(runs, of) {
  values <- unlist(lapply(Filter(function(run) is.null(run$error), runs), of))
  if (is.null(values)) NA_real_ else stats::median(as.numeric(values))
}

# The first epoch traces, compiles and tries engines; the second may still.
warm_epoch <- function(run) {
  stats::median(utils::tail(run$epoch_s, max(1, length(run$epoch_s) - 2)))
}

# Repetitions may choose differently.
all_engines <- function(runs) paste(unique(unlist(lapply(runs, `[[`, "engine"))), collapse = ", ")

number <- function(x, digits = 1) ifelse(is.na(x), "-", sprintf("%.*f", digits, x))

times <- function(x) ifelse(is.na(x), "-", sprintf("%.1fx", x))

notes <- c(
  "",
  "total: building the dataset, staging, tracing, compiling and all epochs. Not in it: starting R",
  "  and Python, importing TensorFlow, making the data and the model.",
  "warm epoch: median of the epochs from the third on. Medians over runs.",
  "faster: than Keras fit() called from R on the same matrix.",
  "memory: growth of the process's peak resident memory, in a run of its own, as a share",
  "  of the R matrix: staged and converted copies, blocks or buffers of rows, compiled programs,",
  "  what allocators keep. Not in it: the matrix, TensorFlow, XLA's compiler and their threads,",
  "  which fits on a few batches brought in before.",
  "loss: of the last epoch; near each other, they show that the same was trained (the limit has no",
  "  dropout and leaves out the short last batch)."
)
