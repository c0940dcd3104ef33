# Functions in R processes of their own.

# What is left of a run: folders here, and processes of these numbers.
run_folders <- function() dir(tempdir(), "^run-")

# Whether processes run. One that has ended but that nobody has waited for still has its number.
lives <- function(pids) {
  vapply(pids, function(pid) {
    stat <- sprintf("/proc/%d/stat", pid)
    if (!file.exists("/proc/self/stat")) {
      return(tools::pskill(pid, 0L))
    }
    any(!grepl(") Z ", tryCatch(readLines(stat), condition = function(gone) NULL), fixed = TRUE))
  }, NA)
}

# The error that a run raises.
run_error <- function(..., verbose = FALSE) {
  expect_error(gpu_run(..., verbose = verbose), class = "gpukeras_error_run")
}

# What a function prints, and the conditions that it signals.
listen <- function(code) {
  heard <- list()
  keep <- function(restart) {
    function(condition) {
      heard[[length(heard) + 1]] <<- condition
      tryInvokeRestart(restart)
    }
  }
  out <- capture.output(value <- withCallingHandlers(
    code,
    warning = keep("muffleWarning"), message = keep("muffleMessage")
  ))
  list(value = value, out = out, heard = heard)
}

# Values -------------------------------------------------------------------------------------------

test_that("results of all kinds come back as they are", {
  values <- list(
    NULL, 1L, "\u00e9", list(), list(a = NULL, list(1, b = "c")), mixed_frame(5), quote(x + y),
    as.POSIXlt("2026-01-02", tz = "UTC"), structure(list(1, x = 2), class = "mine", note = list(3)),
    factor("a"), matrix(1:4, 2), numeric_version("1.2")
  )
  expect_identical(gpu_run(identity, list(values)), values)
  expect_identical(run_folders(), character())
})

test_that("functions bring what they close over, and packages", {
  skip_outside_lane()
  secret <- 41
  helper <- function(x) x + secret
  facts <- gpu_run(function(x, ...) {
    attached <- "package:gpukeras" %in% search()
    list(helper(x), list(...), basename(getwd()), .libPaths(), attached, cli::ansi_nchar("abc"))
  }, list(1, b = 2, 3), packages = c(.packages(), "gpukeras"))
  expect_identical(facts[[1]], 42)
  expect_identical(facts[[2]], list(b = 2, 3))
  expect_identical(facts[[3]], basename(getwd()))
  expect_identical(facts[[4]], .libPaths())
  expect_true(facts[[5]])
  expect_identical(facts[[6]], 3L)
  expect_identical(gpu_run(sum, list(1, 2)), 3)
})

test_that("random numbers repeat, and the session's settings cross", {
  skip_outside_lane()
  withr::local_options(digits = 4, gpukeras.test = "yes")
  draw <- function() {
    list(runif(2), RNGkind(), getOption("digits"), getOption("gpukeras.test"), Sys.getenv("OWN"))
  }
  withr::with_seed(7, first <- gpu_run(draw, env = c(OWN = "1")))
  withr::with_seed(7, second <- gpu_run(draw, env = c(OWN = "1")))
  expect_identical(first, second)
  expect_identical(first[-1], list(RNGkind(), 4L, "yes", "1"))
})

test_that("wrong arguments are refused before anything starts", {
  skip_outside_lane()
  expect_snapshot(error = TRUE, {
    gpu_run("f")
    gpu_run(identity, mtcars)
    gpu_run(identity, list(1), timeout = 0)
    gpu_run(identity, list(1), env = "A")
  })
  expect_identical(run_folders(), character())
})

# Conditions and output ----------------------------------------------------------------------------

test_that("output, messages and warnings come as they are signalled", {
  skip_outside_lane()
  heard <- listen(gpu_run(function() {
    cat("one\n")
    message("two")
    rlang::warn("three", class = "mine", field = 1:3)
    rlang::inform("four", class = "ours")
    print(5)
  }))
  expect_identical(heard$out, c("one", "[1] 5"))
  expect_identical(vapply(heard$heard, `[[`, "", "message"), c("two\n", "three", "four"))
  expect_s3_class(heard$heard[[2]], "mine")
  expect_identical(heard$heard[[2]]$field, 1:3)
  expect_s3_class(heard$heard[[3]], "ours")
  silent <- listen(gpu_run(function() {
    cat("one")
    message("two")
    warning("three")
    4
  }, verbose = FALSE))
  expect_identical(silent[c("value", "out")], list(value = 4, out = character()))
  expect_identical(vapply(silent$heard, conditionMessage, ""), "three")
})

test_that("a handler that leaves ends the run", {
  condition <- tryCatch(gpu_run(function() {
    warning(Sys.getpid())
    Sys.sleep(60)
  }), warning = identity)
  expect_false(lives(as.integer(conditionMessage(condition))))
  expect_identical(run_folders(), character())
})

test_that("errors keep their classes, fields and calls", {
  skip_outside_lane()
  inner <- function(x) rlang::abort("No such thing.", class = "mine", place = x)
  error <- run_error(function(x) inner(x), list(3))
  expect_s3_class(error, "mine")
  expect_identical(error$place, 3)
  expect_identical(error$reason, "error")
  expect_match(conditionMessage(error), "No such thing.", fixed = TRUE)
  expect_s3_class(error$parent, "mine")
  expect_match(paste(format(error$parent$trace), collapse = "\n"), "inner(x)", fixed = TRUE)
  plain <- run_error(function(x) inner2(x), list(3))
  expect_s3_class(plain$parent, "simpleError")
  expect_match(paste(format(plain), collapse = "\n"), "f(args$`1`)", fixed = TRUE)
  ours <- tryCatch(
    gpu_run(
      function(data) gpu_dataset(y ~ ., data = data),
      list(data.frame(y = 1, y = 2, check.names = FALSE)),
      verbose = FALSE
    ),
    gpukeras_error_data = identity
  )
  expect_s3_class(ours, c("gpukeras_error_data", "gpukeras_error_run"), exact = FALSE)
  expect_identical(ours$column, "y")
  expect_snapshot(cat(conditionMessage(ours)))
})

# Ends ---------------------------------------------------------------------------------------------

test_that("a process that dies says how", {
  skip_outside_lane()
  skip_on_os("windows")
  die <- function(signal) {
    cat("last words\n")
    tools::pskill(Sys.getpid(), signal)
    Sys.sleep(10)
  }
  for (signal in c(6L, 9L)) {
    error <- run_error(die, list(signal))
    expect_identical(error[c("reason", "signal")], list(reason = "signal", signal = signal))
    expect_match(error$output, "last words")
    expect_snapshot(cat(conditionMessage(error)))
  }
  status <- run_error(function() quit(status = 3))
  expect_identical(status[c("reason", "status")], list(reason = "status", status = 3L))
  start <- run_error(identity, list(1), packages = "no.such.package")
  expect_identical(start$reason, "start")
  expect_match(conditionMessage(start), "could not start: .*no[.]such[.]package")
  expect_snapshot(cat(start$hint))
  expect_snapshot(cat(conditionMessage(status)))
  expect_identical(format_signal(64L), "64")
  expect_match(hint_of_signal(11L), "crashed")
})

test_that("what it has started ends with it, by a timeout too", {
  skip_outside_lane()
  skip_on_os("windows")
  start <- function(file, seconds) {
    pid <- system("sleep 300 >/dev/null 2>&1 & echo $!", intern = TRUE)
    writeLines(c(pid, Sys.getpid()), file)
    Sys.sleep(seconds)
    1
  }
  file <- withr::local_tempfile()
  expect_identical(gpu_run(start, list(file, 0)), 1)
  expect_false(any(lives(as.integer(readLines(file)))))
  error <- run_error(start, list(file, 60), timeout = 3)
  expect_identical(error$reason, "timeout")
  expect_snapshot(cat(conditionMessage(error)))
  expect_false(any(lives(as.integer(readLines(file)))))
  expect_identical(run_folders(), character())
})

test_that("an interrupt ends the process and leaves nothing", {
  skip_outside_lane()
  skip_on_os("windows")
  file <- withr::local_tempfile()
  session <- callr::r_bg(function(file) {
    work <- function(file) {
      writeLines(as.character(Sys.getpid()), file)
      Sys.sleep(3600)
    }
    tryCatch(gpukeras::gpu_run(work, list(file)), interrupt = function(condition) {
      list("interrupted", dir(tempdir(), "^run-"))
    })
  }, list(file))
  expect_true(wait_until(function() isTRUE(file.size(file) > 1)))
  session$interrupt()
  session$wait(600000)
  expect_identical(session$get_result(), list("interrupted", character()))
  expect_false(lives(as.integer(readLines(file))))
})

# Models and datasets ------------------------------------------------------------------------------

# A model with Python code inside.
with_lambda <- function() {
  reticulate::py_eval("__import__('keras').Sequential([
    __import__('keras').Input((3,)), __import__('keras').layers.Lambda(lambda x: x, name='own')
  ])")
}

# What a child does with a model and a dataset that came as files.
use_saved <- function(model, rows, data) {
  gpu_setup(device = "cpu") # comes in time: the model is loaded at its first use
  list(
    predicted = gpu_predict(model, rows), order = data$handle$order(2L),
    batch_size = data$plan$batch_size, validation = data$plan$validation_rows,
    steps = as.numeric(model$optimizer$iterations$numpy()), model = model
  )
}

# A session that trains in a child, and predicts in another by `use`: what is true in it.
isolated_session <- function(use) {
  train <- function(rows) {
    data <- gpu_dataset(mpg ~ ., data = rows, batch_size = 8, validation = 0.25, seed = 3)
    model <- gpu_mlp(data, units = 4, seed = 1)
    history <- gpu_fit(model, data, epochs = 2, engine = "keras", verbose = 0)
    list(
      fit = list(model = model, history = history), twin = list(model), data = data,
      predicted = gpu_predict(model, rows), recipe = gpu_recipe(model),
      order = data$handle$order(2L), steps = as.numeric(model$optimizer$iterations$numpy())
    )
  }
  library(gpukeras)
  files <- function() dir(tempdir(), "[.]keras$|^file|^run-")
  trained <- gpu_run(train, list(mtcars), verbose = FALSE)
  kind <- class(trained$fit$model)
  printed <- capture.output(print(trained$fit$model), print(trained$data))
  recipe <- gpu_recipe(trained$fit$model)
  args <- list(trained$fit$model, mtcars, data = trained$data)
  used <- if (!is.null(use)) gpu_run(use, args, verbose = FALSE)
  facts <- list(
    kind = kind, printed = printed, history = class(trained$fit$history),
    python = reticulate::py_available(), before = length(files()),
    twins = identical(trained$fit$model, trained$twin[[1]]),
    recipe = identical(recipe, trained$recipe),
    used = used[c("predicted", "order", "batch_size", "validation", "steps")],
    trained = trained[c("predicted", "order", "steps")]
  )
  rm(trained, used, args)
  gc()
  facts$after <- files()
  facts
}

expect_used <- function(used, predicted, order, steps) {
  expect_identical(used[c("predicted", "order", "batch_size", "validation", "steps")], list(
    predicted = predicted, order = order, batch_size = 8L, validation = 8L, steps = steps
  ))
}

# What another child does with these files is below, from a session with Python.
test_that("models and datasets cross by files, and the session starts no Python", {
  skip_without_tensorflow(slow = TRUE)
  environment(isolated_session) <- globalenv()
  facts <- callr::r(isolated_session, list(if (is_nightly()) use_saved), env = c(
    callr::rcmd_safe_env(),
    RETICULATE_PYTHON = reticulate::py_config()$python, TF_CPP_MIN_LOG_LEVEL = "3"
  ))
  expect_false(facts$python)
  expect_identical(facts$kind, c("gpu_saved_model", "gpu_saved", "gpu_result"))
  expect_match(facts$printed[2], "model: +Sequential \"sequential\", 49 weights")
  expect_true("<gpu_dataset> 24 training and 8 validation rows" %in% facts$printed)
  expect_identical(facts$history, c("gpu_history", "gpu_result"))
  for (fact in c("twins", "recipe")) expect_true(facts[[!!fact]])
  expect_identical(facts$trained$steps, 6)
  if (is_nightly()) expect_used(facts$used, facts$trained$predicted, facts$trained$order, 6)
  expect_gt(facts$before, 1) # of the model and the dataset
  expect_identical(facts$after, character())
})

# A dataset of mtcars, and a model that has learned it by a formula.
cars_model <- function(formula = mpg ~ .) {
  data <- gpu_dataset(formula, data = mtcars, batch_size = 8, validation = 0.25, seed = 3)
  list(model = trained(data), data = data)
}

# As results come back where no Python runs.
as_files <- function(values, folder) {
  unpack(pack(values, "result", new_packing(folder, strict = FALSE)), folder, new_saved)
}

test_that("what came as a file is loaded at its first use", {
  skip_without_tensorflow(slow = TRUE)
  cars <- cars_model()
  saved <- as_files(c(cars, with_lambda()), withr::local_tempdir())
  expect_s3_class(saved$model, "gpu_saved_model")
  expect_identical(gpu_predict(saved$model, mtcars), gpu_predict(cars$model, mtcars))
  live <- gpu_load(saved$model)
  expect_identical(gpu_recipe(live), gpu_recipe(cars$model))
  expect_identical(gpu_load(saved$data)$handle$order(2L), cars$data$handle$order(2L))
  refused <- expect_error(gpu_load(saved[[3]]), class = "gpukeras_error_model")
  expect_match(conditionMessage(refused), "safe mode.*`own`")
})

test_that("a session with Python has live models back; what cannot cross is named", {
  skip_without_tensorflow()
  twice <- function(x) 2 * x
  cars <- cars_model(mpg ~ twice(hp) + wt)
  marker <- withr::local_tempfile()
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(cars_model(mpg ~ hp + wt)$model, path, verbose = FALSE)
  forge(path, "mpg ~ hp + wt", sprintf("mpg ~ pmax(hp, system('touch %s')) + wt", marker))
  plain <- cars_model()
  files <- as_files(plain, withr::local_tempdir())
  result <- gpu_run(function(values, forged, rows, use, files) {
    used <- use(files$model, rows, files$data)
    list(
      values = values, predicted = gpu_predict(values$m, rows),
      refused = try(gpu_predict(forged, rows), silent = TRUE), used = used
    )
  }, list(
    list(m = cars$model, list(cars$model, d = cars$data)), gpu_load(path), mtcars, use_saved, files
  ))
  back <- result$values
  expect_used(result$used, gpu_predict(plain$model, mtcars), plain$data$handle$order(2L), 3)
  expect_s3_class(back$m, "python.builtin.object")
  expect_identical(back$m, back[[2]][[1]])
  expect_identical(back[[2]]$d$plan$batch_size, 8L)
  # The functions of a formula go along, and back; those of a forged file are not called.
  expected <- gpu_predict(cars$model, mtcars)
  expect_equal(result$predicted, expected)
  expect_equal(gpu_predict(back$m, mtcars), expected)
  refused <- attr(result$refused, "condition")
  expect_s3_class(refused, "gpukeras_error_data")
  expect_match(one_line(refused), "holds `system()`", fixed = TRUE)
  expect_false(file.exists(marker))

  object <- reticulate::import("numpy", convert = FALSE)$zeros(3L)
  error <- expect_error(gpu_run(identity, list(list(x = object))), class = "gpukeras_error_spec")
  expect_match(one_line(error), "`args[[1]]$x` must be a Keras 3 model", fixed = TRUE)
  error <- expect_error(gpu_run(identity, list(m = with_lambda())), class = "gpukeras_error_model")
  expect_match(one_line(error), "`args$m` holds Python code", fixed = TRUE)
})

test_that("a saved model of another session is told", {
  file <- withr::local_tempfile(lines = "")
  record <- list(kind = "Sequential", name = "mlp", parameters = 1234, bytes = 3e6)
  saved <- new_saved(new_packed("model", file, record))
  expect_true(file.exists(saved$state$path))
  expect_snapshot(saved)
  unlink(saved$state$path)
  expect_error(gpu_predict(saved, mtcars), "its file is gone", class = "gpukeras_error_model")
  expect_error(gpu_fit(saved, mtcars), "its file is gone", class = "gpukeras_error_model")
  expect_snapshot(gpu_predict(saved, mtcars), error = TRUE)
})

test_that("a model is loaded as it is", {
  skip_without_tensorflow()
  model <- a_model()
  expect_identical(gpu_load(model), model)
})

test_that("a model that cannot be loaded is kept as its file, with a warning", {
  skip_without_tensorflow()
  file <- withr::local_tempfile(lines = "no archive", fileext = ".keras")
  record <- list(kind = "Sequential", name = "mlp", parameters = 1234, bytes = 3e6)
  packed <- new_packed("model", file, record)
  without_name <- function(lines) gsub("file[0-9a-f]+[.]keras", "FILE.keras", lines)
  expect_snapshot(saved <- keep_saved(packed), transform = without_name)
  expect_true(file.exists(saved$state$path))
})

test_that("saved files of a child of a child are moved, once", {
  skip_outside_lane()
  record <- list(kind = "Sequential", name = "mlp", parameters = 1, bytes = 1)
  saved <- new_saved(new_packed("model", withr::local_tempfile(lines = "content"), record))
  folder <- withr::local_tempdir()
  packed <- pack(list(saved, b = list(saved)), "result", new_packing(folder, strict = FALSE))
  expect_identical(dirname(packed[[1]]$path), folder)
  again <- unpack(packed, folder, new_saved)
  expect_identical(again[[1]], again$b[[1]])
  expect_identical(readLines(again[[1]]$state$path), "content")
  rm(saved)
  gc()
  expect_true(file.exists(again[[1]]$state$path))
})
