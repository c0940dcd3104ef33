# The tables of all ways to train, one for each case, from the records of the runs.

records <- new.env()
sys.source("records.R", records)
plan <- new.env()
sys.source("plan.R", plan)

print_tables <- function(runs, options) {
  cat(sprintf("\n%s, %d cores, %s\n", R.version.string, parallel::detectCores(), Sys.Date()))
  cat(sprintf("compared with: %s\n", plan$ours$methods[[plan$choose_base()]]$label))
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
    total_s = records$total_s(runs, case, name, most),
    warm_s = records$warm_s(runs, case, name),
    memory = records$memory_share(runs, case, name),
    loss = records$middle(timed, function(run) run$loss[length(run$loss)]),
    engine = records$all_engines(timed),
    runs = describe_runs(records$pick(runs, case, name))
  )
}

describe_runs <- function(runs) {
  failed <- sum(vapply(runs, function(run) !is.null(run$error), NA))
  paste0(length(runs), if (failed > 0) sprintf(", %d failed", failed))
}

format_case <- function(table) {
  against <- table[match(plan$choose_base(), table$method), ]
  data.frame(
    method = table$label,
    total = records$number(table$total_s, 1), faster = times(against$total_s / table$total_s),
    `warm epoch` = records$number(table$warm_s, 3), faster = times(against$warm_s / table$warm_s),
    memory = records$number(table$memory), loss = records$number(table$loss, 3),
    engine = table$engine, runs = table$runs, check.names = FALSE
  )
}

times <- function(x) ifelse(is.na(x), "-", sprintf("%.1fx", x))

notes <- c(
  "",
  "total: building the dataset, staging, tracing, compiling and all epochs; of those that trained",
  "  all rows and epochs. Not in it: starting R and Python, importing TensorFlow, making the data",
  "  and the model, writing the Parquet file.",
  "warm epoch: median of the epochs from the third on, scaled where a part of the rows was trained",
  "  (Keras fed by an R generator; the CNN's slower engines). Medians over runs.",
  "memory: growth of the process's peak resident memory, in a run of its own, as a share of the R",
  "  data: staged and converted copies, blocks or buffers of rows, compiled programs, what",
  "  allocators keep. Not in it: the data, TensorFlow, XLA's compiler and their threads, which",
  "  fits on a few batches brought in before.",
  "loss: of the last epoch; near each other, they show that the same was trained, where they",
  "  trained as long (the limit leaves out the short last batch)."
)
