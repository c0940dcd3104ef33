# Processes that train models side by side, by the workers of a plan of the package future.

# `workers` as the core takes it: `"auto"` is the plan that the user has set, where there is one.
# For processes of this computer it starts its own, as many: it shares out cores and memory of GPUs.
as_workers <- function(workers) {
  if (!identical(workers, "auto") || !isNamespaceLoaded("future")) {
    return(workers)
  }
  plan <- future::plan()
  if (inherits(plan, c("sequential", "multicore"))) { # in this process, or a fork of it
    return(workers)
  }
  count <- min(future::nbrOfWorkers(), 1000)
  here <- inherits(plan, c("multisession", "callr", "mirai_multisession"))
  if (here) count else future_workers(count)
}

# Each worker is a Python process beside an R process of the plan, which waits for its end.
future_workers <- function(count) {
  started <- list()
  python <- python_path()
  backend <- Sys.getenv("KERAS_BACKEND")
  list(
    count = count,
    start = function(folder, place, setup) {
      started[[place]] <<- future::future(
        run_worker(python, c(folder, setup, place), backend),
        globals = list(
          run_worker = run_worker, python = python, folder = folder, setup = setup, place = place,
          backend = backend
        ), seed = NULL
      )
      invisible()
    },
    end = function(place) {
      if (!future::resolved(started[[place]])) {
        return("")
      }
      tryCatch(future::value(started[[place]]), error = conditionMessage)
    }
  )
}

# Runs a worker to its end, and returns how it ended.
run_worker <- function(python, arguments, backend) {
  core <- system.file("python", package = "gpukeras", mustWork = TRUE)
  given <- Sys.getenv("PYTHONPATH")
  searched <- paste(c(core, given[nzchar(given)]), collapse = .Platform$path.sep)
  ended <- processx::run(
    python, c("-m", "gpukeras.many.workers.main", arguments), error_on_status = FALSE,
    env = c(
      "current", PYTHONPATH = searched, own_libraries(python),
      if (nzchar(backend)) c(KERAS_BACKEND = backend)
    )
  )
  last <- utils::tail(strsplit(trimws(ended$stderr), "\n")[[1]], 1)
  paste(c(paste("exit status", ended$status), last), collapse = ": ")
}
