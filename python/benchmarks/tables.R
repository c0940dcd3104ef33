# The tables of all ways to train, one for each case, from the records of the runs.

records <- new.env()
sys.source("records.R", records)
plan <- new.env()
sys.source("plan.R", plan)

print_tables <- function(runs, options) {
  cat(sprintf("\n%s, %d cores, %s\n", R.version.string, parallel::detectCores(), Sys.Date()))
  cat(sprintf("compared with: %s\n", plan$ours$methods[[plan$choose_base()]]$label))
  instead <- c(keras3 = ": Keras is called through reticulate")
  for (name in plan$list_missing()) {
    cat(sprintf("The R package %s is not installed%s.\n", name, plan$or_else(
      as.list(instead)[[name]], ": what needs it is left out"
    )))
  }
  if (options$quick) {
    cat("--quick: a twentieth of the rows, 3 epochs, one run: no promise can be judged by this.\n")
  }
  cases <- intersect(names(plan$measured$cases), vapply(runs, `[[`, "", "case"))
  for (case in cases) print_case(runs, case)
  if (length(cases) > 0) cat(notes, sep = "\n")
}

print_case <- function(runs, case) {
  used <- unique(vapply(records$pick(runs, case), `[[`, "", "method"))
  names <- intersect(names(plan$ours$methods), used)
  table <- do.call(rbind, lapply(names, summarise_method, runs, case))
  cat(sprintf("\n%s\n", plan$measured$cases[[case]]$label))
  print(format_case(table), row.names = FALSE, right = FALSE)
}

summarise_method <- function(name, runs, case) {
  timed <- records$pick(runs, case, name, "time")
  most <- max(0, unlist(lapply(records$pick(runs, case, measure = "time"), `[[`, "epochs")))
  data.frame(
    method = name, label = plan$ours$methods[[name]]$label,
    warm_s = records$warm_s(runs, case, name),
    total_s = records$total_s(runs, case, name, most),
    memory = records$memory_share(runs, case, name),
    loss = records$middle(timed, function(run) run$loss[length(run$loss)]),
    chosen = paste0(records$all_engines(timed), records$best_steps(runs, case, name)),
    busy = describe_load(records$pick(runs, case, name)),
    runs = describe_runs(records$pick(runs, case, name))
  )
}

# The highest 1-minute load average, and the most cores that others took.
describe_load <- function(runs) {
  highest <- function(of) {
    found <- suppressWarnings(as.numeric(unlist(lapply(runs, of))))
    if (all(is.na(found))) NA_real_ else max(found, na.rm = TRUE)
  }
  load <- highest(function(run) run$load[c("load_before", "load_after")])
  others <- highest(function(run) run$load$others)
  stolen <- highest(function(run) run$load$stolen)
  paste(records$number(c(load, others, stolen), 1), collapse = "/")
}

describe_runs <- function(runs) {
  failed <- sum(vapply(runs, function(run) !is.null(run$error), NA))
  paste0(length(runs), if (failed > 0) sprintf(", %d failed", failed))
}

# Ratios to Keras as an expert calls it come first.
format_case <- function(table) {
  ratios <- function(figure) {
    lapply(c("steps", plan$choose_base()), function(name) {
      times(table[[figure]][match(name, table$method)] / table[[figure]])
    })
  }
  warm <- ratios("warm_s")
  total <- ratios("total_s")
  data.frame(
    method = table$label,
    `warm epoch` = records$number(table$warm_s, 3), `x best` = warm[[1]], `x default` = warm[[2]],
    total = records$number(table$total_s, 1), `x best` = total[[1]], `x default` = total[[2]],
    memory = records$number(table$memory), loss = records$number(table$loss, 3),
    chosen = table$chosen, load = table$busy, runs = table$runs, check.names = FALSE
  )
}

times <- function(x) ifelse(is.na(x), "-", sprintf("%.1fx", x))

notes <- c(
  "",
  "x best, x default: how many times as fast as Keras on TensorFlow with its best",
  "  steps_per_execution, which a search in front of the clock found, and at its default.",
  "total: building the dataset, staging, tracing, compiling and all epochs; of those that trained",
  "  all rows and epochs. Not in it: starting R and Python, importing TensorFlow, making the data",
  "  and the model, writing the Parquet file.",
  "warm epoch: median of the epochs from the third on, scaled where a part of the rows was trained",
  "  (Keras fed by an R generator; the CNN's slower engines). Medians over runs.",
  "memory: growth of the process's peak resident memory, in a run of its own, as a share of the R",
  "  data: staged and converted copies, blocks or buffers of rows, compiled programs, what",
  "  allocators keep. Not in it: the data, TensorFlow, XLA's compiler and their threads, which",
  "  fits on a few batches brought in before.",
  "chosen: gpukeras' engine, or Keras' best steps_per_execution (for memory: 32).",
  "load: the highest 1-minute load average before or after a run, our own work included; the most",
  "  cores that other processes took during a run; cores that the computer's host took.",
  "loss: of the last epoch; near each other, they show that the same was trained, where they",
  "  trained as long (the limit leaves out the short last batch)."
)
