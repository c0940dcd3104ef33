# The workers of a distributed training: how they join and how they are started.

#' Train on several computers, or in several processes
#'
#' Makes this R session a worker of a cluster. After that, [gpu_fit()] runs on all workers together,
#' each with a share of every batch; so do [gpu_evaluate()] and [gpu_predict()] with
#' `devices = "all"`. All workers run the same script and call these functions in the same order.
#' The first worker is the chief, which alone writes files. Call `gpu_cluster()` before you create
#' the first model (only [gpu_setup()] may come before), because TensorFlow connects workers only
#' when it starts. [gpu_launch()] starts workers.
#'
#' `gpu_cluster()` takes the workers from the first of these that is set:
#' - the arguments `workers` and `index`;
#' - the environment variable `TF_CONFIG`, in TensorFlow's format, with tasks of the types
#'   `"worker"` and `"chief"`; [gpu_launch()] sets it;
#' - Slurm, if `srun` starts the script: each task is a worker. The ports are derived from the job
#'   number, from 12000 to 31999.
#'
#' The workers are compared when they join: if package versions or the number of devices differ, all
#' workers end with an error that lists the differences. If a worker ends, or sends no heartbeat for
#' `timeout` seconds, all others end with an error that names it. A restarted script resumes from
#' its last checkpoint; see `checkpoint` of [gpu_fit()]. If a queue asks one worker to end by a
#' signal, all end at the same step, saved: see the section on queues there.
#'
#' @section Time-outs:
#' `timeout` is for heartbeats, which a worker sends all the time. Nothing else decides that a
#' worker is lost: TensorFlow's own heartbeats, which give up after 8 to 10 seconds, are switched
#' off, so a computer that was suspended or paged for less than `timeout` goes on. Two more
#' time-outs are learned from what was observed on the workers' hosts, in this user's folder for
#' caches: all workers must join within five minutes, or, once three starts were observed, five
#' times the slowest of the last 20, at least a minute; and from one agreement of a training to the
#' next, which follow each call of the engine, five times the longest may pass, at least half an
#' hour (before three epochs, any time). The factor is NVIDIA's. `GPUKERAS_CLUSTER_CACHE` names
#' another folder, or is `"off"`.
#'
#' A worker that the others wait for, because of its rows, its callbacks or R, is named in the
#' history's notes if it took a second longer than the median of the others, and theirs is below 0.7
#' of its time. A slow device is not told apart from waiting for one.
#'
#' @section Ports and access:
#' On every worker, TensorFlow listens on the worker's port. The chief also listens on the control
#' channel. Its address is the environment variable `GPUKERAS_CONTROL`, or else the chief's host and
#' the port after the highest port of a worker there. Both accept connections only on the one
#' address that was given.
#'
#' On the control channel, the workers prove to each other that they know the `secret`: each message
#' carries a code (HMAC-SHA-256) that cannot be made without it, replayed or reflected. A client
#' without the secret is rejected and recorded in `$notes`, and the start continues. With `tls`, the
#' channel is also encrypted, and each side presents a certificate. Without either, only workers on
#' this computer (addresses such as `127.0.0.1`) are accepted, and any program on it could join.
#'
#' TensorFlow's own connections have neither: anyone who can connect to a worker's port can read and
#' change the training, and run code. So use addresses of a private network (a cluster's own, a
#' WireGuard tunnel) behind a firewall.
#'
#' @section A secret:
#' [gpu_launch()] makes a secret for each launch. Otherwise give every worker the same secret, of at
#' least 16 characters that nobody can guess, in the first of these:
#' - `secret`: the path of a file, or the secret itself;
#' - the environment variable `GPUKERAS_SECRET`, which holds either.
#'
#' Only its owner may have access to a file (`chmod 600`); other files are refused. In a home folder
#' that all computers share, one file serves them all:
#' `(umask 077; openssl rand -hex 32 > ~/train.secret)`. For Slurm, one line before `srun` is
#' enough, `export GPUKERAS_SECRET=$(openssl rand -hex 32)`, because tasks inherit the variables of
#' the batch script.
#'
#' @param workers Addresses of all workers, `"host:port"`, the chief's first, the same on each
#'   worker; IPv6 addresses in brackets. `NULL` uses `TF_CONFIG` or Slurm.
#' @param index The number of this session's worker, from 1.
#' @param timeout Seconds without a heartbeat after which a worker counts as lost, at least 1.
#' @param secret The secret that all workers share, see *A secret*; a text that contains a slash or
#'   begins with `~` is the path of a file. `NULL` uses `GPUKERAS_SECRET`.
#' @param tls `NULL`, or a named list of PEM files: `cert` (this worker's certificate), `key` (its
#'   key, which only its owner may read) and `ca` (the authority that signed all certificates). The
#'   chief's certificate must name the host of the control channel.
#' @param x A `gpu_cluster`.
#' @param ... Not used.
#' @return A `gpu_cluster`: a list with `$workers`, `$index`, `$size`, `$address` (of this worker),
#'   `$chief`, `$control`, `$source` (where the workers were found), `$devices` (of this worker),
#'   `$replicas` (devices of all workers), `$secret` and `$tls` (whether there is one),
#'   `$timeouts` (a data frame: `what`, `seconds`, `reason`) and `$notes`.
#' @section Errors:
#' `gpukeras_error_spec` if no workers are given, an address is invalid, workers on several
#' computers have neither `secret` nor `tls`, or others can read the file of either;
#' `gpukeras_error_cluster` if TensorFlow has already started, or a worker does not join or differs.
#' @seealso [gpu_launch()]; `gpu_fit(devices = )` trains on several GPUs of one computer without a
#'   cluster.
#' @examplesIf gpukeras:::can_run_examples()
#' # The script of each worker, started on its computer with its number: `Rscript train.R 1`.
#' script <- file.path(tempdir(), "train.R")
#' writeLines(c(
#'   "library(gpukeras)",
#'   "workers <- c('10.0.0.5:2222', '10.0.0.6:2222')",
#'   "gpu_cluster(workers, as.integer(commandArgs(TRUE)), secret = '~/train.secret')",
#'   "train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 16, seed = 1)",
#'   "model <- gpu_mlp(train, seed = 1)",
#'   "gpu_fit(model, train, epochs = 20, checkpoint = 'checkpoints')"
#' ), script)
#'
#' # Or with TF_CONFIG, which gpu_cluster() without arguments reads.
#' gpu_launch(script, c("10.0.0.5:2222", "10.0.0.6:2222"), start = FALSE)
#' @export
gpu_cluster <- function(workers = NULL, index = NULL, timeout = 60, secret = NULL, tls = NULL) {
  options <- list(
    workers = as_addresses(workers), index = index, timeout_s = timeout, secret = secret,
    tls = if (!is.null(tls)) as.list(tls)
  )
  check_no_na_options(options)
  record <- call_core("join_cluster", list(options = options))
  at_session_end("cluster", function() call_core("leave_cluster")) # informs the other workers
  new_gpu_cluster(record)
}

# Addresses are sent as a list. Anything else is left as it is, for the core to refuse.
as_addresses <- function(workers) {
  if (is.character(workers)) as.list(unname(workers)) else workers
}

new_gpu_cluster <- function(record) {
  texts <- c("workers", "devices")
  record[texts] <- lapply(record[texts], as_chr)
  record$timeouts <- records_frame(record$timeouts, c("what", "seconds", "reason"))
  new_result(record, "gpu_cluster")
}

#' @rdname gpu_cluster
#' @export
format.gpu_cluster <- function(x, ...) {
  sources <- c("as given" = "as given", TF_CONFIG = "by TF_CONFIG", SLURM = "by Slurm")
  role <- if (x$index == 1) ", the chief" else ""
  marks <- ifelse(seq_along(x$workers) == x$index, " (this session)", "")
  c(
    sprintf(
      "<gpu_cluster> worker %d of %d%s, %s", as.integer(x$index), as.integer(x$size), role,
      sources[[x$source]]
    ),
    sprintf("worker %d  %s%s", seq_along(x$workers), x$workers, marks),
    paste("devices here:", paste(x$devices, collapse = ", ")),
    format_listening(x),
    format_notes(x$notes)
  )
}

# The ports on which this computer listens, and who can connect to them.
format_listening <- function(x) {
  chief <- if (x$index == 1) sprintf(" and %s (control channel)", x$control)
  c(
    sprintf("listening here: %s (TensorFlow)%s", x$address, chief %||% ""),
    format_channel(x),
    if (isTRUE(x$loopback)) {
      "Only this computer can connect."
    } else {
      c(
        "TensorFlow's connections are neither encrypted nor authenticated: whoever can reach its",
        "ports can take part. Run the workers in a private network; see ?gpu_cluster."
      )
    }
  )
}

# How workers authenticate on the control channel.
format_channel <- function(x) {
  if (x$size == 1) {
    return(NULL)
  }
  if (!isTRUE(x$secret) && !isTRUE(x$tls)) {
    return("There is no secret: any program of this computer can join.")
  }
  known <- c(if (isTRUE(x$secret)) "know the secret", if (isTRUE(x$tls)) "have a certificate (TLS)")
  sprintf("The control channel lets in workers that %s.", paste(known, collapse = " and "))
}

# Launching ----------------------------------------------------------------------------------------

#' Start the workers of a training
#'
#' Runs a script in several processes that train together: each calls [gpu_cluster()] without
#' arguments, which reads the worker's number from `TF_CONFIG`. If `workers` is a number, all of
#' them start on this computer, and only this computer can connect to them. If it holds addresses,
#' the workers of this computer start, and the commands for the others are printed. All workers
#' share a secret that is made for this launch, or the one in the variable `GPUKERAS_SECRET`; the
#' printed commands contain it, so keep them private.
#'
#' Each worker writes its output to its own log file. If there are GPUs, each worker of this
#' computer sees an equal share of them (by `CUDA_VISIBLE_DEVICES`). With more workers than GPUs,
#' all train on the CPU, because workers cannot share a GPU. Workers use the working directory, the
#' library paths and the Python of this session.
#'
#' When a worker fails, the cluster ends the others with an error; those that still run after
#' `timeout` seconds are stopped. `gpu_launch()` checks this while you wait for the workers, and
#' whenever you use the object.
#'
#' @section Ends:
#' `$stop()`, an interrupt during a wait, and the end of this R session (however it ends) stop the
#' workers and all processes that they started.
#'
#' @section Methods:
#' - `$wait(timeout = Inf)` waits until all workers have ended, or for `timeout` seconds. If a
#'   worker fails, it raises an error.
#' - `$stop()` stops the workers.
#' - `$log(worker, n = 20)` returns the last `n` lines of a worker's log.
#' - `$running()` returns whether any worker is still running, `$latest()` returns the state of all
#'   workers as a list.
#'
#' @section Errors:
#' `gpukeras_error_cluster` if a worker fails during a wait. It has the fields `worker`, `address`,
#' `reason`, `log` (the file), `output` (the end of the log) and `launch`, and names the worker that
#' failed first, not those that ended because of it. `gpukeras_error_data` if the script does not
#' exist, `gpukeras_error_spec` for a port that is in use.
#'
#' @param script Path of an R script (`.R`), or of a Python script (`.py`).
#' @param workers How many workers to start on this computer; or the addresses of workers on any
#'   computers, `"host:port"`, the chief's first.
#' @param args Arguments of the script, for `commandArgs(TRUE)`.
#' @param log_dir Folder for the logs, `worker-1.log` and so on; logs of earlier launches stay.
#'   `NULL` uses a temporary folder, which is removed when this R session ends.
#' @param wait Whether to wait until all workers have ended.
#' @param timeout Seconds that the other workers have to end by themselves after a worker has
#'   failed.
#' @param start `FALSE` starts no workers and only creates the commands.
#' @param x A `gpu_launch`.
#' @param row.names,optional,... Not used.
#' @return A `gpu_launch`, with `print()`, the functions above, `$script`, `$control` (the control
#'   channel's address), `$log_dir`, and `as.data.frame()`: one row per worker with `worker`,
#'   `address`, `status` (`"running"`, `"done"`, `"failed"`, `"stopped"`, or `"not started"` here),
#'   `exit_status` (minus the signal's number if a signal killed it), `seconds`, `log`, `gpus` (its
#'   `CUDA_VISIBLE_DEVICES`, `""` if it is not set for the worker) and `command`, which starts the
#'   worker by hand.
#' @seealso [gpu_cluster()].
#' @examplesIf gpukeras:::can_run_examples(processes = TRUE)
#' script <- tempfile(fileext = ".R")
#' writeLines("cat('I am', Sys.getenv('TF_CONFIG'))", script)
#' launch <- gpu_launch(script, workers = 2)
#' launch
#' launch$log(1)
#'
#' # On two computers: what to type there.
#' gpu_launch(script, c("10.0.0.5:2222", "10.0.0.6:2222"), start = FALSE)
#' @export
gpu_launch <- function(script, workers = 2, args = character(), log_dir = NULL, wait = TRUE,
                       timeout = 60, start = TRUE) {
  check_launch(script, workers, args, log_dir, timeout)
  check_flag(wait)
  check_flag(start)
  record <- call_core("launch", list(
    script = path.expand(script), workers = as_addresses(workers),
    options = launch_options(args, log_dir, timeout, start)
  ))
  launch <- new_gpu_launch(record)
  if (!wait || !record$running) {
    return(launch)
  }
  inform_gpukeras(i = sprintf("The workers' logs are in %s.", record$log_dir))
  launch$wait()
}

check_launch <- function(script, workers, args, log_dir, timeout, call = caller_env()) {
  check_string(script, call = call)
  check_no_na_options(list(workers = workers, timeout = timeout), call)
  if (!is_texts(args)) abort_spec(args, "args", "a character vector", call)
  if (!is.null(log_dir)) check_string(log_dir, call = call)
}

# This session's R, library paths and Python, which the workers use too.
launch_options <- function(args, log_dir, timeout, start) {
  python <- python_path()
  variables <- c(
    R_LIBS = paste(.libPaths(), collapse = .Platform$path.sep),
    if (nzchar(python)) c(RETICULATE_PYTHON = python)
  )
  list(
    args = as.list(args), log_dir = path.expand(log_dir %||% tempfile("launch-")),
    timeout_s = timeout, start = start, rscript = file.path(R.home("bin"), "Rscript"),
    python = python, variables = as.list(variables)
  )
}

# Queries the state of the workers each time, as long as this session holds their handle.
new_gpu_launch <- function(record) {
  handle <- record$handle
  latest <- function() {
    if (!is_dead(handle)) record <<- call_core("launch_status", list(handle = handle))
    record
  }
  stop <- function() {
    if (!is_dead(handle)) record <<- call_core("launch_stop", list(handle = handle))
    invisible(launch)
  }
  wait <- function(timeout = Inf) {
    if (!is_dead(handle)) record <<- wait_for_workers(handle, timeout)
    if (!is.null(record$failure)) abort_launch(record$failure, launch)
    invisible(launch)
  }
  log <- function(worker, n = 20) {
    check_no_na_options(list(worker = worker, n = n))
    lines <- call_core("launch_log", list(handle = handle, worker = worker, lines = n))
    as_chr(lines)
  }
  launch <- new_result(
    list(
      script = record$script, control = record$control, log_dir = record$log_dir, wait = wait,
      stop = stop, log = log, running = function() isTRUE(latest()$running), latest = latest
    ),
    "gpu_launch"
  )
  launch
}

# Polls, so that R can handle interrupts in between. Whatever ends the wait early stops the workers.
wait_for_workers <- function(handle, timeout) {
  if (!is_seconds(timeout)) abort_spec(timeout, "timeout", "a number of seconds", caller_env())
  deadline <- Sys.time() + timeout
  ended <- FALSE
  on.exit(if (!ended) suspendInterrupts(call_core("launch_stop", list(handle = handle))))
  repeat {
    record <- suspendInterrupts(call_core("launch_wait", list(handle = handle, timeout_s = 0)))
    if (!record$running || Sys.time() > deadline) break
    Sys.sleep(0.1)
  }
  ended <- TRUE
  record
}

abort_launch <- function(failure, launch, call = quote(gpu_launch())) {
  abort_gpukeras(
    format_failure(failure),
    code = "cluster", hint = sprintf("Its log is %s.", failure$log), worker = failure$worker,
    address = failure$address, reason = failure$reason, log = failure$log,
    output = launch$log(failure$worker), launch = launch, call = call
  )
}

format_failure <- function(failure) {
  said <- if (nzchar(failure$error)) paste0(": ", failure$error) else "."
  sprintf(
    "Worker %d (%s) failed first (%s)%s", as.integer(failure$worker), failure$address,
    failure$reason, said
  )
}

#' @rdname gpu_launch
#' @export
as.data.frame.gpu_launch <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  columns <- c(
    "worker", "address", "status", "exit_status", "seconds", "log", "gpus", "command"
  )
  frame <- records_frame(x$latest()$workers, columns)
  whole <- c("worker", "exit_status")
  frame[whole] <- lapply(frame[whole], as.integer)
  numeric_columns(frame, "seconds")
}

#' @rdname gpu_launch
#' @export
format.gpu_launch <- function(x, ...) {
  record <- x$latest()
  frame <- as.data.frame(x)
  counts <- table(factor(frame$status, unique(frame$status)))
  elsewhere <- frame[frame$status == "not started", ]
  c(
    sprintf(
      "<gpu_launch> %s, %s: %s", basename(x$script), count_of(nrow(frame), "workers"),
      paste(counts, names(counts), collapse = ", ")
    ),
    if (nrow(elsewhere) < nrow(frame)) format_workers(frame),
    paste("control channel:", x$control),
    if (nzchar(x$log_dir)) paste("logs:", x$log_dir),
    if (!is.null(record$failure)) format_failure(record$failure),
    format_notes(as_chr(record$notes)),
    if (nrow(elsewhere) > 0) format_commands(elsewhere, nrow(elsewhere) < nrow(frame)),
    if (isTRUE(record$running)) "They end with $stop() or with this R session."
  )
}

format_workers <- function(frame) {
  shown <- frame[c("worker", "address", "status", "exit_status", "seconds")]
  shown$exit_status <- ifelse(is.na(shown$exit_status), "", shown$exit_status)
  shown$seconds <- ifelse(is.na(shown$seconds), "", sprintf("%.1f", shown$seconds))
  names(shown)[4] <- "exit status"
  if (any(nzchar(frame$gpus))) shown$GPUs <- ifelse(frame$gpus == "-1", "none", frame$gpus)
  shown$log <- basename(frame$log)
  trimws(format_frame(shown), "right")
}

# The commands to run in the folder of `script`.
format_commands <- function(frame, others) {
  lines <- Map(
    function(worker, address, command) c(sprintf("worker %d (%s):", worker, address), command),
    frame$worker, frame$address, frame$command
  )
  c(if (others) "To start the others:" else "To start them:", unlist(lines, use.names = FALSE))
}
