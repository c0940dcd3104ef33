# gpu_run(): a function in another R process. run-child.R runs there; run-serialize.R sends values,
# run-events.R passes on output and conditions, run-result.R reads the result.

#' Run a function in another R process, and free the card
#'
#' Starts a fresh R process, calls `f` there, returns its result and ends the process. This frees
#' everything that the process held, including the memory of the graphics card, which TensorFlow
#' keeps until its process ends. This session starts neither Python nor TensorFlow for it.
#'
#' @section Arguments and result:
#' `args` and the result are serialized as by `saveRDS()`. Keras models and [gpu_dataset()]s in
#' them, also in lists, are passed as files: a model as a `.keras` file with the state of its
#' optimizer and its [gpu_recipe()], a dataset as [gpu_dataset_save()] writes it, with its batch
#' size, seed and split. The other process has copies, so `f` must return a model that it trains.
#' Models are loaded in Keras' safe mode, so Lambda layers with a Python lambda cannot be passed;
#' nothing is pickled. Other Python objects cannot be passed.
#'
#' `f` keeps the values that it closes over, except models and datasets: pass them in `args`. The
#' other process has an empty workspace. Models and datasets in `args` are loaded when `f` first
#' uses them, so `f` can first register layer classes with Keras and call [gpu_setup()]: this
#' session's settings do not apply there.
#'
#' If TensorFlow runs in this session, models and datasets of the result are loaded at once. If it
#' does not, they are returned as a `gpu_saved_model` and a `gpu_saved_dataset`. [gpu_fit()],
#' [gpu_evaluate()], [gpu_predict()] and [gpu_load()] load these on first use, and another
#' `gpu_run()` takes them without loading them here. They last as long as the session. A model that
#' cannot be loaded is returned in the same way, with a warning.
#'
#' @section Warnings, errors and output:
#' Messages and warnings of `f` are signalled here at once, with their classes, and its output is
#' printed here. If you call `set.seed()` first, the random numbers of `f` repeat.
#'
#' An error of `f` is raised here as `gpukeras_error_run` with the classes and fields of the
#' original error, so that `tryCatch(gpu_run(f), gpukeras_error_data = )` works. Its `parent` is the
#' original error; `rlang::last_trace()` shows its calls in the other process. If the process ends
#' without a result, the field `reason` is `"signal"`, `"status"`, `"start"` or `"timeout"`, with
#' `signal` or `status`, and `output` has the end of what the process wrote. An interrupt ends the
#' process and everything that it started. If this session itself is killed, `f` runs to its end.
#'
#' @section Forks:
#' `parallel::mclapply()`, `mcparallel()` and `future::plan(multicore)` copy this session without
#' TensorFlow's threads, so calls would hang. In such a fork, every call into Python is an error of
#' class `gpukeras_error_fork`, except [gpu_check()] and [gpu_report()]. `gpu_run()` works there,
#' and so do newly started processes, such as those of mirai.
#' @param f A function.
#' @param args Its arguments: a list.
#' @param timeout Seconds after which the process and everything that it started are ended.
#' @param verbose Whether to show messages, output and progress. Warnings are always shown.
#' @param env Environment variables of the process, as a named character vector, such as
#'   `c(CUDA_VISIBLE_DEVICES = "1")`; the others are this session's.
#' @param packages Packages to attach there; the default is those attached here.
#' @return The value of `f`.
#' @section Errors:
#' `gpukeras_error_run` as above. Before `f` is called: `gpukeras_error_model` for a model that
#' cannot be saved, or not loaded again; `gpukeras_error_data` for a dataset that is mapped by a
#' function or has no end; `gpukeras_error_spec` for another Python object, with its position in
#' `args`.
#' @examplesIf gpukeras:::can_run_examples(processes = TRUE)
#' fold <- function(rows) {
#'   train <- gpu_dataset(mpg ~ ., data = rows)
#'   model <- gpu_mlp(train)
#'   list(model = model, history = gpu_fit(model, train, epochs = 5, verbose = FALSE))
#' }
#' result <- gpu_run(fold, list(mtcars[1:24, ]))
#' gpu_predict(result$model, mtcars[25:32, ])
#' @export
gpu_run <- function(f, args = list(), timeout = Inf, verbose = TRUE, env = character(),
                    packages = .packages()) {
  timeout <- plain_number(timeout)
  check_run(f, args, timeout, verbose, env, packages)
  folder <- new_run_folder()
  child <- NULL
  on.exit(suspendInterrupts(end_child(child, folder)))
  write_call(f, args, packages, folder)
  suspendInterrupts(child <- start_child(folder, env))
  output <- await_child(child, folder, timeout, verbose)
  read_outcome(child, folder, output)
}

check_run <- function(f, args, timeout, verbose, env, packages, call = caller_env()) {
  need <- function(good, x, arg, expected) if (!good) abort_spec(x, arg, expected, call)
  need(is.function(f) && !inherits(f, "python.builtin.object"), f, "f", "a function")
  need(rlang::is_bare_list(args), args, "args", "a list of arguments")
  need(is_seconds(timeout), timeout, "timeout", "a number of seconds")
  check_flag(verbose, call = call)
  named <- length(env) == 0 || rlang::is_named(env)
  need(is_texts(env) && named, env, "env", "a named character vector")
  need(is_texts(packages), packages, "packages", "a character vector")
}

is_seconds <- function(x) is.numeric(x) && length(x) == 1 && !is.na(x) && x > 0

is_texts <- function(x) is.character(x) && !anyNA(x)

# The folder of a run. The child's temporary files are in it too, so that they are removed even if
# the child is killed.
new_run_folder <- function() {
  folder <- tempfile("run-")
  dir.create(file.path(folder, "tmp"), recursive = TRUE)
  folder
}

write_call <- function(f, args, packages, folder, call = caller_env()) {
  packing <- new_packing(folder, strict = TRUE, call)
  work <- list(
    f = f, args = pack(args, "args", packing), packages = rev(packages), options = kept_options(),
    kind = RNGkind(), seed = draw_seed()
  )
  saveRDS(work, file.path(folder, "call.rds"), compress = FALSE)
}

# Options that change results or printing: plain values of base R and of packages that gpukeras
# works with, and the properties of this session's terminal.
kept_options <- function() {
  all <- Filter(is.atomic, options())
  base <- c("digits", "scipen", "OutDec", "encoding", "na.action", "contrasts", "max.print")
  ours <- grepl("^(gpukeras|reticulate|keras3?|tensorflow|tfdatasets|cli)[.]", names(all))
  kept <- all[ours | names(all) %in% base]
  kept$width <- cli::console_width()
  kept$cli.dynamic <- cli::is_dynamic_tty()
  kept$cli.unicode <- cli::is_utf8_output()
  kept$cli.num_colors <- cli::num_ansi_colors()
  kept
}

start_child <- function(folder, env) {
  python <- python_path()
  callr::r_bg(
    function(folder) asNamespace("gpukeras")$run_child(folder),
    list(folder = folder),
    stdout = "|", stderr = "|", poll_connection = FALSE,
    env = c(
      callr::rcmd_safe_env(),
      TMPDIR = file.path(folder, "tmp"),
      if (nzchar(python)) c(RETICULATE_PYTHON = python),
      env
    )
  )
}

# Ends the child with all its own child processes, and removes its files.
end_child <- function(child, folder) {
  if (!is.null(child)) {
    try(child$kill_tree(), silent = TRUE) # its child processes may outlive it
    child$wait(5000)
  }
  unlink(folder, recursive = TRUE)
}
