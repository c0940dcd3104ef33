# Joining is tested in Python; here is what R makes of it, and workers that are really launched.

a_cluster_record <- function(...) {
  record <- list(
    workers = list("127.0.0.1:2222", "127.0.0.1:2223"), index = 1L, size = 2L,
    address = "127.0.0.1:2222", chief = "127.0.0.1:2222", control = "127.0.0.1:2224",
    source = "TF_CONFIG", loopback = TRUE, devices = list("CPU:0"), replicas = 2L, notes = list(),
    secret = TRUE, tls = FALSE
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

a_worker <- function(worker, status, exit_status = NULL, seconds = 12.345, gpus = "") {
  here <- status != "not started"
  list(
    worker = worker, address = sprintf("10.0.0.%d:2222", worker), status = status,
    exit_status = exit_status, seconds = if (here) seconds,
    log = if (here) sprintf("/logs/worker-%d.log", worker) else "", gpus = gpus,
    command = sprintf("TF_CONFIG='{...%d}' GPUKERAS_CONTROL=10.0.0.1:2223 Rscript t.R", worker)
  )
}

a_launch_record <- function(workers, ...) {
  statuses <- vapply(workers, `[[`, "", "status")
  record <- list(
    handle = "a handle", script = "scripts/train.R", workers = workers,
    control = "10.0.0.1:2223", log_dir = if (all(statuses == "not started")) "" else "/logs",
    running = any(statuses == "running"), failure = NULL, notes = list()
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

a_failure <- function() {
  list(
    worker = 2L, address = "10.0.0.2:2222", reason = "exit status 1",
    error = "Error in f() : no {good}", log = "/logs/worker-2.log"
  )
}

# Joining ------------------------------------------------------------------------------------------

test_that("a cluster prints who, where and what listens", {
  expect_snapshot({
    new_gpu_cluster(a_cluster_record())
    new_gpu_cluster(a_cluster_record(
      workers = list("10.0.0.5:2222", "10.0.0.6:2222", "[fd00::7]:2222"), index = 2L, size = 3L,
      address = "10.0.0.6:2222", chief = "10.0.0.5:2222", control = "10.0.0.5:2223",
      source = "as given", loopback = FALSE, devices = list("GPU:0", "GPU:1"), replicas = 6L,
      notes = list("TensorFlow listens on port 2222 of all of this computer's addresses.")
    ))
    new_gpu_cluster(a_cluster_record(secret = FALSE))
    new_gpu_cluster(a_cluster_record(tls = TRUE))
  })
})

test_that("the core gets addresses as a list, also a single one", {
  seen <- NULL
  local_core(function(name, args) {
    seen <<- c(seen, list(c(list(name), args)))
    answer(a_cluster_record())
  })
  cluster <- gpu_cluster(c("a:1", "b:1"), 2, timeout = 30)
  gpu_cluster("a:1", 1)
  gpu_cluster()
  expect_identical(seen[[1]], list("join_cluster", options = list(
    workers = list("a:1", "b:1"), index = 2, timeout_s = 30, secret = NULL, tls = NULL
  )))
  expect_identical(seen[[2]]$options$workers, list("a:1"))
  expect_identical(seen[[3]]$options, list(
    workers = NULL, index = NULL, timeout_s = 60, secret = NULL, tls = NULL
  ))
  gpu_cluster(secret = "~/it", tls = c(cert = "a", key = "b", ca = "c"))
  expect_identical(seen[[4]]$options$secret, "~/it")
  expect_identical(seen[[4]]$options$tls, list(cert = "a", key = "b", ca = "c"))
  expect_identical(cluster$workers, c("127.0.0.1:2222", "127.0.0.1:2223"))
  expect_identical(cluster$notes, character())
  expect_error(gpu_cluster("a:1", NA), class = "gpukeras_error_spec")
})

test_that("the real core refuses what says nothing", {
  skip_without_tensorflow()
  variables <- c(
    "TF_CONFIG", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_PROCID", "GPUKERAS_SECRET"
  )
  withr::local_envvar(rlang::set_names(rep(NA, length(variables)), variables))
  expect_snapshot(error = TRUE, gpu_cluster())
  expect_snapshot(error = TRUE, gpu_cluster(workers = 2, index = 1))
  expect_snapshot(error = TRUE, gpu_cluster(c("a:1", "b:1"), 3))
  expect_snapshot(error = TRUE, gpu_cluster(c("a:1", "a:1"), 1))
  expect_snapshot(error = TRUE, gpu_cluster(c("a:1", "b:1"), 1))
  expect_snapshot(error = TRUE, gpu_cluster(c("a:1", "b:1"), 1, secret = "short"))
  expect_snapshot(error = TRUE, gpu_cluster(c("a:1", "b:1"), 1, tls = "a.pem"))
})

test_that("a secret file that others can read is refused", {
  skip_without_tensorflow()
  skip_on_os("windows")
  file <- withr::local_tempfile(lines = "0123456789abcdef", pattern = "secret-")
  Sys.chmod(file, "644", use_umask = FALSE)
  error <- expect_error(
    gpu_cluster(c("a:1", "b:1"), 1, secret = file),
    class = "gpukeras_error_spec"
  )
  expect_match(conditionMessage(error), "others than its owner can use the file secret-")
})

# Printing a launch --------------------------------------------------------------------------------

test_that("a launch prints its workers, and what to type elsewhere", {
  expect_snapshot({
    new_gpu_launch(a_launch_record(list(a_worker(1, "done", 0L), a_worker(2, "running"))))
    new_gpu_launch(a_launch_record(
      list(a_worker(1, "stopped", -15L, gpus = "0,1"), a_worker(2, "failed", 1L, 3, "2,3")),
      failure = a_failure(), notes = list("Worker 1 was stopped.")
    ))
    new_gpu_launch(a_launch_record(list(
      a_worker(1, "running", gpus = "-1"), a_worker(2, "not started")
    )))
    new_gpu_launch(a_launch_record(list(a_worker(1, "not started"))))
  })
})

test_that("as.data.frame() has a row a worker, and columns of one type", {
  launch <- new_gpu_launch(a_launch_record(list(a_worker(1, "running"), a_worker(2, "failed", 1L))))
  frame <- as.data.frame(launch)
  expect_named(frame, c(
    "worker", "address", "status", "exit_status", "seconds", "log", "gpus", "command"
  ))
  expect_identical(frame$exit_status, c(NA, 1L))
  expect_identical(frame$worker, 1:2)
  none <- new_gpu_launch(a_launch_record(list(a_worker(1, "not started"))))
  expect_identical(as.data.frame(none)[c("exit_status", "seconds")], data.frame(
    exit_status = NA_integer_, seconds = NA_real_
  ))
})

test_that("a launch of another session is what it was", {
  launch <- new_gpu_launch(a_launch_record(list(a_worker(1, "done", 0L))))
  expect_false(launch$running())
  expect_identical(launch$wait(), launch)
  expect_identical(launch$stop(), launch)
})

test_that("arguments are checked before anything is started", {
  skip_outside_lane()
  asked <- character()
  local_core(function(name, args) asked <<- c(asked, name))
  expect_snapshot(error = TRUE, gpu_launch(3))
  expect_snapshot(error = TRUE, gpu_launch("t.R", NA))
  expect_snapshot(error = TRUE, gpu_launch("t.R", args = 1))
  expect_snapshot(error = TRUE, gpu_launch("t.R", log_dir = 1))
  expect_snapshot(error = TRUE, gpu_launch("t.R", wait = "yes"))
  expect_snapshot(error = TRUE, gpu_launch("t.R", start = NA))
  expect_identical(asked, character())
})

# Real workers -------------------------------------------------------------------------------------

# An R script of its own, which need not start Python.
a_script <- function(..., frame = parent.frame()) {
  withr::local_tempfile(lines = c(...), fileext = ".R", .local_envir = frame)
}

tell_index <- "index <- as.integer(sub('.*\"index\":([0-9]+).*', '\\\\1', Sys.getenv('TF_CONFIG')))"

is_gone <- function(pid) wait_until(function() !tools::pskill(pid, 0))

test_that("workers run an R script, with this session's libraries and Python", {
  skip_without_tensorflow()
  script <- a_script(
    tell_index, "cat(index, '\\n')", "cat(commandArgs(TRUE), sep = '|')",
    "cat('\\n', .libPaths()[1], '\\n', sep = '')", "cat(Sys.getenv('RETICULATE_PYTHON'), '\\n')"
  )
  logs <- withr::local_tempdir()
  expect_snapshot(
    launch <- gpu_launch(script, 2, args = c("a b", "c"), log_dir = logs),
    transform = function(lines) gsub(logs, "LOGS", lines, fixed = TRUE)
  )
  frame <- as.data.frame(launch)
  expect_identical(frame$status, c("done", "done"))
  expect_identical(frame$exit_status, c(0L, 0L))
  expect_identical(basename(frame$log), c("worker-1.log", "worker-2.log"))
  expect_identical(
    trimws(launch$log(2)), c("1", "a b|c", .libPaths()[1], python_path())
  )
  expect_length(launch$log(1, n = 1), 1)
  expect_false(launch$running())
  expect_error(launch$log(3), class = "gpukeras_error_spec")
})

test_that("the worker that fails is an error that names it", {
  skip_without_tensorflow()
  script <- a_script(tell_index, "if (index == 1) stop('no {good}')", "Sys.sleep(600)")
  condition <- expect_error(
    suppressMessages(gpu_launch(script, 2, timeout = 0)), class = "gpukeras_error_cluster"
  )
  expect_match(one_line(condition), "Worker 2 \\(127.0.0.1:[0-9]+\\) failed first \\(exit stat")
  expect_match(one_line(condition), "no {good}", fixed = TRUE)
  expect_snapshot(cat(sub("log is .*", "log is <file>.", condition$hint)))
  expect_identical(condition$worker, 2L)
  expect_identical(condition$reason, "exit status 1")
  expect_match(condition$output, "no {good}", fixed = TRUE, all = FALSE)
  expect_identical(as.data.frame(condition$launch)$status, c("stopped", "failed"))
})

test_that("a launch that is not waited for is stopped", {
  skip_without_tensorflow()
  launch <- gpu_launch(a_script("message('begun')", "Sys.sleep(600)"), 1, wait = FALSE)
  expect_true(wait_until(function() identical(launch$log(1), "begun")))
  expect_true(launch$running())
  expect_identical(launch$wait(0.2), launch)
  expect_match(format(launch)[1], "1 running")
  launch$stop()
  expect_identical(as.data.frame(launch)$status, "stopped")
  expect_match(format(launch)[1], "1 stopped")
  expect_identical(launch$wait(), launch)
})

test_that("commands for other computers are made and nothing is started", {
  skip_without_tensorflow()
  script <- a_script("stop()")
  launch <- gpu_launch(script, c("one.invalid:22", "two.invalid:22"), args = "a b", start = FALSE)
  frame <- as.data.frame(launch)
  expect_identical(frame$status, rep("not started", 2))
  secret <- "GPUKERAS_SECRET=[0-9a-f]{64}"
  expect_match(frame$command, sprintf(
    "^TF_CONFIG='.*' GPUKERAS_CONTROL=one.invalid:23 %s Rscript .* 'a b'$", secret
  ))
  expect_identical(launch$log_dir, "")
})

test_that("an interrupt of the wait comes through and ends the workers", {
  skip_without_tensorflow()
  skip_on_os("windows")
  folder <- withr::local_tempdir()
  worker <- a_script(sprintf("writeLines(as.character(Sys.getpid()), file.path('%s', paste0(
    'worker-', grepl('index\":0', Sys.getenv('TF_CONFIG')))))", folder), "Sys.sleep(600)")
  r <- start_r(c(
    "library(gpukeras)",
    sprintf("writeLines(as.character(Sys.getpid()), '%s')", file.path(folder, "launcher")),
    sprintf("value <- tryCatch(gpu_launch('%s', 2),", worker),
    "  interrupt = function(condition) 'interrupted')",
    "cat(value, '\\n')"
  ), wait = FALSE)
  files <- file.path(folder, c("worker-TRUE", "worker-FALSE"))
  expect_true(wait_until(function() all(file.exists(files) & file.size(files) > 0)))
  pids <- as.integer(vapply(files, readLines, ""))
  tools::pskill(as.integer(readLines(file.path(folder, "launcher"))), tools::SIGINT)
  expect_true(wait_until(function() any(grepl("^interrupted", readLines(r$out)))))
  for (pid in pids) expect_true(is_gone(pid))
})

test_that("workers end with the session that launched them, however it ends", {
  skip_without_tensorflow()
  skip_on_os("windows")
  folder <- withr::local_tempdir()
  worker <- a_script(sprintf(
    "writeLines(as.character(Sys.getpid()), '%s')", file.path(folder, "worker")
  ), "Sys.sleep(600)")
  start_r(c(
    "library(gpukeras)",
    sprintf("writeLines(as.character(Sys.getpid()), '%s')", file.path(folder, "launcher")),
    sprintf("gpu_launch('%s', 1)", worker)
  ), wait = FALSE)
  file <- file.path(folder, "worker")
  expect_true(wait_until(function() file.exists(file) && file.size(file) > 0))
  tools::pskill(as.integer(readLines(file.path(folder, "launcher"))), tools::SIGKILL)
  expect_true(is_gone(as.integer(readLines(file))))
})
