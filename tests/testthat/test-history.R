# Fields -------------------------------------------------------------------------------------------

test_that("a history says where it ran, how fast, and why", {
  fit <- full_history()
  expect_identical(fit$where, "6 variables on CPU:0")
  expect_equal(fit$throughput, 1e6 / c(6, 3.25, 3))
  expect_identical(fit$input_wait, 0.034)
  expect_identical(fit$peak_memory, NA_real_)
  expect_identical(history(peak_bytes = 2^30)$peak_memory, 2^30)
  expect_identical(
    fit$reasons, c(engine = "measured fastest", batch_size = "about 100 updates an epoch")
  )
  expect_identical(fit$learning_rate, c(0.01, 0.005, 0.001))
})

test_that("the record of an older gpukeras will do", {
  fit <- history()
  expect_null(fit$throughput)
  expect_identical(fit$notes, character())
  expect_match(fit$reasons[["engine"]], "measured fastest")
  plan <- list(mode = "streamed", batch_size = 8L, reason = "", batch_reason = "b")
  with_plan <- history(plan = plan)
  expect_identical(names(with_plan$reasons), c("engine", "batch_size"))
})

# Printing -----------------------------------------------------------------------------------------

test_that("a history prints what was trained, where, how fast and why so", {
  expect_snapshot(print(history()))
})

test_that("a history prints how the training ended", {
  expect_snapshot({
    cat(format(history(stopped = "early"))[1])
    cat(format(history(stopped = "interrupted", epochs = 1L))[1])
    cat(format(history(stopped = "some day"))[1])
  })
})

test_that("a loss that is no number is told first, and notes last", {
  why <- "Stopped: the loss became NaN in step 12 of epoch 2. The weights before it are back."
  expect_snapshot({
    print(full_history(
      stopped = "non_finite", history = list(loss = list(1, NaN, Inf)),
      notes = list("CPU:0 ran out of memory.", why)
    ))
  })
})

test_that("a validation whose value is no number is told, and epochs without one are not", {
  ended <- function(freq, values) {
    history <- list(loss = list(3, 2, 1), val_loss = values)
    format(full_history(history = history, epochs = 3L, validation_freq = freq))[2]
  }
  expect_match(ended(1L, list(2, 1, NaN)), "val_loss NaN", fixed = TRUE)
  expect_match(ended(2L, list(NaN, 1.5, NaN)), "val_loss 1.5", fixed = TRUE)
  expect_match(ended(list(1L, 2L, 9L), list(2, NaN, NaN)), "val_loss NaN", fixed = TRUE)
  expect_match(ended(list(1L), list(2.5, NaN, NaN)), "val_loss 2.5", fixed = TRUE)
})

test_that("a history prints what was done on the way", {
  fit <- full_history()
  fit$micro_batch <- 128L
  fit$skipped_steps <- 3L
  fit$resumed_epochs <- 2L
  fit$best_epoch <- 2L
  fit$checkpoint <- "run-1"
  fit$notes <- c("Continued after epoch 2.", "The disk was full: no checkpoint after epoch 3.")
  expect_snapshot(print(fit))
})

test_that("a history of a GPU prints its peak memory", {
  gpu <- history(
    device = "GPU:0", precision = "mixed_bfloat16", peak_bytes = 3.5 * 2^30,
    variables = list(`GPU:0` = 6L, `CPU:0` = 1L)
  )
  expect_snapshot(print(gpu))
})

test_that("a history without trials or epochs prints", {
  engine <- list(engine = "keras", reason = "as asked", trials = list())
  expect_snapshot({
    print(history(engine = engine))
    print(no_epochs())
    summary(no_epochs())
  })
})

test_that("a history of one epoch prints", {
  one <- history_of(loss = 0.5)
  expect_snapshot({
    print(one)
    summary(one)
  })
})

test_that("of dozens of metrics some are printed", {
  names <- c("loss", sprintf("output %d: {auc}", 1:30))
  many <- do.call(history_of, rlang::set_names(rep(list(c(1, 2)), 31), names))
  expect_snapshot(cat(format(many)[2]))
  expect_identical(nrow(summary(many)$metrics), 31L)
})

test_that("print() gives its argument back, invisibly", {
  for (shown in list(history(), summary(history()), rbind(history(), history()))) {
    capture.output(answer <- withVisible(print(shown)))
    expect_identical(answer$value, shown)
    expect_false(answer$visible)
  }
})

test_that("rows that were left out of a stream are told", {
  plan <- list(
    mode = "streamed", batch_size = 32L, dropped_rows = 2L,
    na_reason = "dropped: 2 of 60 rows with missing values"
  )
  lines <- format(new_gpu_history(a_report(plan = plan)))
  expect_match(lines, "missing: dropped: 2 of 60 rows", all = FALSE, fixed = TRUE)
})

# Data frames --------------------------------------------------------------------------------------

test_that("a history is a data frame with a row for each value", {
  frame <- as.data.frame(history())
  expect_named(frame, c("epoch", "metric", "value", "data"))
  expect_identical(nrow(frame), 12L)
  expect_identical(levels(frame$metric), c("loss", "accuracy"))
  expect_identical(levels(frame$data), c("training", "validation"))
  validation <- frame[frame$metric == "loss" & frame$data == "validation", ]
  expect_identical(validation$epoch, 1:3)
  expect_identical(validation$value, c(1.75, 1, 0.5))
})

test_that("a wide data frame has a row for each epoch", {
  frame <- as.data.frame(full_history(), wide = TRUE)
  expect_named(
    frame, c("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "seconds")
  )
  expect_identical(frame$val_loss, c(1.75, 1, 0.5))
  expect_identical(frame$seconds, c(6, 3.25, 3))
  expect_identical(frame$learning_rate, c(0.01, 0.005, 0.001))
  expect_error(as.data.frame(history(), wide = NA), class = "gpukeras_error_spec")
})

test_that("a history of one epoch, or none, is a data frame too", {
  one <- history_of(loss = 0.5)
  expect_identical(
    as.data.frame(one, wide = TRUE), data.frame(epoch = 1L, loss = 0.5, seconds = 2)
  )
  expect_identical(as.data.frame(one)$value, 0.5)
  expect_identical(dim(as.data.frame(no_epochs())), c(0L, 4L))
  expect_identical(dim(as.data.frame(no_epochs(), wide = TRUE)), c(0L, 2L))
})

test_that("names of metrics stay as Keras has them", {
  odd <- history_of(loss = 1:3, `top-5 accuracy` = 1:3, `{x} %d` = 1:3)
  expect_named(
    as.data.frame(odd, wide = TRUE), c("epoch", "loss", "top-5 accuracy", "{x} %d", "seconds")
  )
  expect_identical(levels(as.data.frame(odd)$metric), c("loss", "top-5 accuracy", "{x} %d"))
  expect_match(format(odd)[2], "{x} %d 3", fixed = TRUE)
})

test_that("a metric may itself be called val_something", {
  data_of <- function(fit) {
    frame <- as.data.frame(fit)
    paste(frame$metric, frame$data)
  }
  expect_identical(
    data_of(history_of(loss = 1, val_x = 2)), c("loss training", "val_x training")
  )
  expect_identical(
    data_of(history_of(loss = 1, val_x = 2, val_loss = 3, val_val_x = 4)),
    c("loss training", "val_x training", "loss validation", "val_x validation")
  )
  expect_identical(data_of(history_of(val_auc = 1)), "auc validation")
})

test_that("a learning rate that a callback logs is no metric", {
  fit <- history_of(loss = c(2, 1), learning_rate = c(0.1, 0.01))
  expect_identical(levels(as.data.frame(fit)$metric), "loss")
  expect_named(as.data.frame(fit, wide = TRUE), c("epoch", "loss", "seconds"))
})

test_that("epochs before a checkpoint count", {
  whole <- history(resumed_epochs = 1L, epoch_s = list(3.25, 3))
  expect_identical(as.data.frame(whole, wide = TRUE)$epoch, 1:3)
  expect_identical(as.data.frame(whole, wide = TRUE)$seconds, c(NA, 3.25, 3))
  rest <- history(resumed_epochs = 4L, epochs = 7L)
  expect_identical(as.data.frame(rest, wide = TRUE)$epoch, 5:7)
  again <- history(resumed_epochs = 6L, epochs = 7L) # of `initial_epoch = 4`, resumed later
  expect_identical(as.data.frame(again, wide = TRUE)$epoch, 5:7)
})

# Saves a record as the core does: what is not finite is null.
save_history <- function(report, path) {
  writeLines(jsonlite::toJSON(report, auto_unbox = TRUE, null = "null", digits = NA), path)
  path
}

# Metrics that are arrays --------------------------------------------------------------------------

array_history <- function(...) {
  history(
    history = list(
      loss = list(2, 1, 0.5), f1_score = list(c(0.1, 0.2), c(0.5, 0.4), c(0.3, 0.6)),
      confusion = list(NaN, list(c(1, 2), c(3, 4)), list(c(5, 6), c(7, 8))),
      val_loss = list(3, 2, 1), val_f1_score = list(c(0, 0), c(0.5, NaN), c(1, 0))
    ),
    ...
  )
}

test_that("a metric whose values are arrays is a matrix, and counts by component", {
  fit <- array_history()
  expect_identical(fit$history$f1_score, cbind(`f1_score[1]` = c(0.1, 0.5, 0.3), `f1_score[2]` = c(
    0.2, 0.4, 0.6
  )))
  expect_identical(colnames(fit$history$confusion), sprintf("confusion[%s]", c(
    "1,1", "1,2", "2,1", "2,2"
  )))
  expect_identical(unname(fit$history$confusion[1, ]), rep(NaN, 4))
  expect_identical(unname(fit$history$confusion[2, ]), c(1, 2, 3, 4))
  frame <- as.data.frame(fit)
  expect_identical(levels(frame$metric), c(
    "loss", "f1_score[1]", "f1_score[2]", colnames(fit$history$confusion)
  ))
  validation <- frame[frame$metric == "f1_score[2]" & frame$data == "validation", ]
  expect_identical(validation$value, c(0, NaN, 0))
  expect_identical(as.data.frame(fit, wide = TRUE)$`confusion[2,1]`, c(NaN, 3, 7))
  best <- summary(fit)$metrics
  expect_identical(best$best_epoch[best$metric == "f1_score[2]" & best$data == "training"], 3L)
  expect_snapshot({
    print(fit)
    summary(fit)
    rbind(one = fit, two = array_history())
    cat(format_event(list(epoch = 1, epochs = 2, metrics = as.list(1:9) |>
      rlang::set_names(sprintf("f1_score[%d]", 1:9)))))
  })
})

test_that("arrays are plotted by component, and their name stands for all", {
  local_device()
  fit <- array_history()
  expect_identical(plot(fit), fit)
  expect_identical(
    levels(drawn_rows(fit, "f1_score")$metric), c("f1_score[1]", "f1_score[2]")
  )
  expect_identical(levels(drawn_rows(fit, c("loss", "f1_score[2]"))$metric), c(
    "loss", "f1_score[2]"
  ))
  expect_error(drawn_rows(fit, "f1"), class = "gpukeras_error_spec")
  skip_if_not_installed("ggplot2")
  panels <- ggplot2::ggplot_build(ggplot2::autoplot(fit, metric = "confusion"))$layout$layout
  expect_identical(nrow(panels), 4L)
})

test_that("arrays come back from files", {
  folder <- withr::local_tempdir()
  path <- file.path(folder, "history.json")
  values <- list(list(0.1, NULL), list(0.5, 0.4))
  report <- a_report(history = list(loss = list(2, 1), f1_score = values))
  fit <- read_history(save_history(report, path))
  expect_identical(unname(fit$history$f1_score), rbind(c(0.1, NaN), c(0.5, 0.4)))
  writeLines(history_text(fit), path)
  expect_identical(read_history(path)$history, fit$history)
})

# Reading ------------------------------------------------------------------------------------------

test_that("a saved history is the same history", {
  folder <- withr::local_tempdir()
  save_history(a_report(), file.path(folder, "history.json"))
  expect_equal(read_history(folder), history())
  expect_equal(read_history(file.path(folder, "history.json")), history())
})

test_that("what was not finite is NaN", {
  folder <- withr::local_tempdir()
  report <- a_report(history = list(loss = list(1, NULL, 2), "\u00e4 {b}" = list(NULL, NULL, 3)))
  fit <- read_history(save_history(report, file.path(folder, "history.json")))
  expect_identical(fit$history, list(loss = c(1, NaN, 2), "\u00e4 {b}" = c(NaN, NaN, 3)))
})

test_that("a history that cannot be read is named", {
  skip_outside_lane()
  folder <- withr::local_tempdir()
  file <- file.path(folder, "history.json")
  missing <- expect_error(read_history(folder), class = "gpukeras_error_data")
  expect_identical(missing$path, file)
  for (text in c("{\"history\": [1,", "", "[1, 2]", "3", "{\"epochs\": 2}")) {
    writeLines(text, file)
    error <- expect_error(read_history(folder), class = "gpukeras_error_data")
    expect_identical(error$arg, "path")
    expect_match(one_line(error), "history.json", fixed = TRUE)
  }
  expect_error(read_history(NULL), class = "gpukeras_error_spec")
  expect_snapshot(error = TRUE, {
    read_history("no-such-folder")
    read_history(folder)
  })
})

test_that("a pipe in the place of a history is not waited at", {
  skip_on_os("windows")
  folder <- withr::local_tempdir()
  skip_if(system2("mkfifo", shQuote(file.path(folder, "history.json"))) != 0)
  error <- expect_error(read_history(folder), class = "gpukeras_error_data")
  expect_match(conditionMessage(error), "The file `history.json` is not JSON", fixed = TRUE)
})
