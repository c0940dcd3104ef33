event <- function(...) {
  event <- list(
    kind = "epoch", epoch = 1L, epochs = 3L, step = 4L, steps = 4L,
    metrics = list(loss = 0.123456, accuracy = 1)
  )
  changes <- list(...)
  event[names(changes)] <- changes
  event
}

test_that("an event is a line with four significant digits", {
  expect_snapshot({
    cat(format_event(event()))
    cat(format_event(event(metrics = list(loss = 123456.789, val_loss = 1.23456e-7))))
    cat(format_event(event(metrics = list(loss = NaN))))
  })
})

test_that("outside a terminal there is a line for each epoch", {
  listener <- progress_listener(TRUE)
  expect_snapshot(for (epoch in 1:3) listener(event(epoch = epoch)))
  expect_silent(listener(event(kind = "progress", step = 2L)))
})

test_that("a long training prints about 20 lines, the last epoch among them", {
  show <- line_printer()
  lines <- capture.output(for (epoch in 1:1003) show(event(epoch = epoch, epochs = 1003L)))
  expect_true(length(lines) >= 15 && length(lines) <= 25)
  expect_match(lines[length(lines)], "epoch 1003/1003", fixed = TRUE)
})

test_that("a listener goes on", {
  expect_false(progress_listener(FALSE)(event()))
  capture.output(answer <- progress_listener(TRUE)(event()))
  expect_false(answer)
})

test_that("an interrupt stops the training", {
  interrupted <- structure(list(message = "", call = NULL), class = c("interrupt", "condition"))
  listener <- progress_listener(TRUE)
  # The event is only read inside the listener, as an interrupt only comes there.
  expect_true(listener(signalCondition(interrupted)))
})

test_that("an error in the listener is not taken for an interrupt", {
  expect_error(progress_listener(TRUE)(stop("broken")), "broken")
})

test_that("silence is silent", {
  for (verbose in list(FALSE, 0, 0L)) {
    expect_silent(progress_listener(verbose)(event()))
  }
})

test_that("Keras' numbers for verbose are understood", {
  for (verbose in list(TRUE, 1, 2)) {
    expect_output(progress_listener(verbose)(event()), "epoch 1/3")
  }
})

test_that("anything else for verbose is refused", {
  for (verbose in list(NA, "loud", 3, -1)) {
    expect_error(progress_listener(verbose), class = "gpukeras_error_spec")
  }
})

test_that("a call that is no training has a bar of its own steps", {
  withr::local_options(
    cli.dynamic = TRUE, cli.progress_show_after = 0, cli.progress_handlers_force = "logger"
  )
  run <- function(steps) {
    told <- call_listener(TRUE, "predicting", "rows", call = environment())
    invisible(told(list(step = 30L, steps = steps)))
  }
  lines <- capture.output(suppressMessages(run(120L)))
  expect_match(lines[1], "0/120 created")
  expect_match(lines[length(lines)], "30/120 terminated")
  expect_match(capture.output(suppressMessages(run(NULL)))[1], "0/NA created")
})

test_that("each pass over the rows has a bar of its own, with its verb and units", {
  withr::local_options(
    cli.dynamic = TRUE, cli.progress_show_after = 0, cli.progress_handlers_force = "logger"
  )
  pass <- function(verb, step, steps, units = "rows") {
    list(verb = verb, step = step, steps = steps, units = units)
  }
  run <- function() {
    told <- call_listener(TRUE, "predicting", call = environment())
    told(pass("reading", 2^20, 2^21, "bytes"))
    told(pass("learning from", 30L, 120L))
    told(pass("learning from", 10L, 120L)) # another pass
    told(list(step = 60L, steps = 120L))
  }
  lines <- capture.output(suppressMessages(invisible(run())))
  bars <- sub("^\\S+ \\S+ ", "", grep("created|terminated", lines, value = TRUE))
  ends <- c("1048576/2097152", "30/120", "10/120", "60/120")
  starts <- c("0/2097152", "0/120", "0/120", "0/120")
  expect_identical(bars, c(rbind(paste(starts, "created"), paste(ends, "terminated (done)"))))
  expect_identical(format_steps(2^21, "bytes"), "2 MiB")
  expect_identical(format_steps(2000, "rows"), "2,000 rows")
})

test_that("a document has no bars", {
  withr::local_options(
    cli.dynamic = TRUE, cli.progress_show_after = 0, cli.progress_handlers_force = "logger",
    knitr.in.progress = TRUE
  )
  expect_silent(call_listener(TRUE, "predicting")(list(step = 1L, steps = 2L)))
  expect_output(progress_listener(TRUE)(event()), "^epoch 1/3")
})

test_that("outside a terminal, and with verbose = FALSE, such a call says nothing", {
  expect_silent(call_listener(TRUE, "predicting", "rows")(list(step = 1L, steps = 2L)))
  withr::local_options(cli.dynamic = TRUE, cli.progress_handlers_force = "logger")
  expect_silent(call_listener(FALSE, "predicting", "rows")(list(step = 1L, steps = 2L)))
  expect_error(call_listener("loud", "predicting", "rows"), class = "gpukeras_error_spec")
})

test_that("a bar counts epochs, and goes when the function is left", {
  withr::local_options(
    cli.dynamic = TRUE, cli.progress_show_after = 0, cli.progress_handlers_force = "logger"
  )
  run <- function() {
    show <- bar_printer(frame = environment())
    show(event(kind = "progress", epoch = 2L, step = 2L))
    cat("training goes on\n")
  }
  lines <- capture.output(suppressMessages(run()))
  expect_match(lines[1], "0/3 created")
  expect_true("training goes on" %in% lines)
  expect_match(lines[length(lines)], "1.5/3 terminated", fixed = TRUE)
})

test_that("a metric's name is shown, and neither run nor obeyed", {
  skip_outside_lane()
  withr::local_dir(withr::local_tempdir())
  name <- "{file.create('ran')} {.val {1}} \u001b]0;title\a\u001b[2J"
  shown <- "{file.create('ran')} {.val {1}} \\x1b]0;title\\x07\\x1b[2J: 0.5"
  named <- event(kind = "progress", metrics = rlang::set_names(list(0.5), name))
  saveRDS(named, "event.rds")
  writeLines(con = "draw.R", c(
    "options(cli.dynamic = TRUE, cli.progress_show_after = 0, cli.width = 200L)",
    "event <- readRDS('event.rds')",
    "draw <- function() {",
    "  show <- asNamespace('gpukeras')$bar_printer(frame = environment())",
    "  for (step in 1:5) {",
    "    Sys.sleep(0.3)",
    "    show(utils::modifyList(event, list(step = step)))",
    "  }",
    "}",
    "draw()"
  ))
  env <- c(callr::rcmd_safe_env(), CLI_TICK_TIME = "100") # cli draws when its clock ticks
  drawn <- callr::rscript("draw.R", stderr = "2>&1", show = FALSE, env = env)$stdout
  expect_match(drawn, shown, fixed = TRUE)
  expect_no_match(drawn, "\u001b]0;", fixed = TRUE)
  named$kind <- "epoch"
  expect_match(capture.output(line_printer()(named)), shown, fixed = TRUE)
  expect_false(file.exists("ran"))
})

test_that("a bar of a training of unknown length counts epochs, and their parts once known", {
  withr::local_options(
    cli.dynamic = TRUE, cli.progress_show_after = 0, cli.progress_handlers_force = "logger"
  )
  run <- function() {
    show <- bar_printer(frame = environment())
    unknown <- event(kind = "progress", step = 2L)
    unknown["steps"] <- list(NULL)
    show(unknown)
    show(event(kind = "progress", epoch = 2L, step = 1L)) # after an epoch it is known
  }
  lines <- capture.output(suppressMessages(run()))
  expect_match(lines[1], "0/3 created")
  expect_match(lines[length(lines)], "1.25/3 terminated", fixed = TRUE)
})

test_that("while rows are waited for nothing is shown, but interrupts come in", {
  waiting <- event(kind = "waiting", metrics = list())
  listener <- progress_listener(TRUE)
  expect_silent(answer <- listener(waiting))
  expect_false(answer)
})
