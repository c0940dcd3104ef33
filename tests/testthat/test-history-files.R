# A whole record, changed, as a history.json.
changed_history <- function(change = identity, frame = parent.frame()) {
  path <- withr::local_tempfile(fileext = ".json", .local_envir = frame)
  record <- list(
    history = list(loss = list(1.5, 0.5)), learning_rate = list(0.1, 0.1), epochs = 2, rows = 10,
    elapsed_s = 1.5, epoch_s = list(1, 0.5), epoch_rows = list(5, 5), samples_per_s = 10,
    input_share = 0, device = "CPU:0", variables = list("CPU:0" = 4), precision = "float32",
    engine = list(engine = "graph_loop", reason = "fast", trials = list()), micro_batch = 5,
    replicas = 1, workers = 1, devices = list("CPU:0"), skipped_steps = 0, resumed_epochs = 0,
    best_epoch = 0, stopped = "completed", notes = list(), reasons = list(engine = "fast"),
    checkpoint = "", tensorboard = "",
    plan = list(batch_size = 5, mode = "resident", dropped_rows = 0)
  )
  text <- jsonlite::toJSON(change(record), auto_unbox = TRUE, digits = NA, null = "null")
  writeLines(gsub("\"@([^\"]*)@\"", "\\1", text), path)
  path
}
with_field <- function(field, value) {
  function(record) {
    record[[field]] <- value
    record
  }
}

test_that("a whole history is read, also one of a single epoch", {
  history <- read_history(changed_history())
  expect_identical(history$history$loss, c(1.5, 0.5))
  expect_output(print(history), "2 epochs")
  short <- read_history(changed_history(with_field("learning_rate", 0.1)))
  expect_identical(short$learning_rate, 0.1)
})

test_that("a field of another kind is an error that names it", {
  skip_outside_lane()
  wrong <- list(
    history = list(
      "text", list(loss = "text"), list(loss = list("text")), list(loss = list(TRUE)), list(1)
    ),
    epochs = list("2", 2.5, -1, 1e300, list(1), "@1e999@", TRUE), best_epoch = list("x", 0.5),
    elapsed_s = list("1", list(), "@null@", "@1e999@"), epoch_s = list("fast", list("a")),
    stopped = list(1, list("a", "b")), engine = list("x", list(engine = 1), list(trials = list(1))),
    plan = list(1, list(batch_size = "8"), list(na_reason = 1)), notes = list(list(1)),
    reasons = list(list(1)), variables = list(list("CPU:0" = "many"), "x"), device = list(1),
    samples_per_s = list("x"), micro_batch = list("x"), devices = list(list(list("a")))
  )
  for (field in names(wrong)) {
    for (value in wrong[[field]]) {
      error <- expect_error(
        read_history(changed_history(with_field(field, value))),
        class = "gpukeras_error_data", info = field
      )
      if (!is.null(error)) expect_identical(error$field, field)
    }
  }
  for (text in c("", "[]", "3", "\"x\"", "null", "{}", strrep("[", 1e5), "{\"history\": ", "\001")) {
    path <- withr::local_tempfile(fileext = ".json", lines = text)
    expect_error(read_history(path), class = "gpukeras_error_data")
  }
})

test_that("numbers without end and arrays are shown, not refused", {
  values <- list(loss = list("@1e999@", "@null@"), f1 = list(1:2, 3:4))
  path <- changed_history(with_field("history", values))
  history <- read_history(path)
  expect_identical(history$history$loss, c(Inf, NaN))
  expect_output(print(history), "Inf|NaN")
  expect_type(format(summary(history)), "character")
  deep <- paste0("@", strrep("[", 50), strrep("]", 50), "@")
  nested <- changed_history(with_field("history", list(loss = deep)))
  expect_error(read_history(nested), class = "gpukeras_error_data")
})

test_that("what a file says does not drive the terminal", {
  escape <- "\033]0;owned\007\033[31m"
  path <- changed_history(function(record) {
    names(record$history) <- paste0("loss", escape)
    record$notes <- list(escape)
    record$engine$reason <- escape
    record$reasons <- list(engine = escape)
    record$stopped <- paste0("by", escape, "\u202e\u009b")
    record$devices <- list(escape)
    names(record$variables) <- escape
    record
  })
  history <- read_history(path)
  shown <- utils::capture.output({
    print(history)
    print(summary(history))
    print(rbind(a = history, b = history))
  })
  expect_false(any(grepl("[\u0001-\u0008\u000b-\u001f\u007f\u009b\u202e]", shown)))
  expect_true(any(grepl("\\x1b[31m", shown, fixed = TRUE)))
})

test_that("control characters are shown as code, other signs stay", {
  expect_identical(show_controls("a\033[1mb\r\n\tc"), "a\\x1b[1mb\\x0d\n\tc")
  expect_identical(show_controls("gr\u00f6\u00dfe \u00b0 \u2588"), "gr\u00f6\u00dfe \u00b0 \u2588")
  expect_identical(show_controls("\u202eabc\u0085"), "\\u202eabc\\x85")
  expect_identical(show_controls(character()), character())
  expect_true(validUTF8(show_controls("\xff\xfe")))
  error <- expect_error(abort_gpukeras("Column `\033[2J`.", code = "data"))
  expect_match(conditionMessage(error), "\\x1b[2J", fixed = TRUE)
})

test_that("a damaged history in a model's file is left out, with a note", {
  skip_without_tensorflow()
  train <- gpu_dataset(mpg ~ hp, data = mtcars)
  model <- gpu_mlp(train)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  path <- withr::local_tempfile(fileext = ".keras")
  for (value in few(c("\"x\"", "1e999", "[1]", "-1", strrep("9", 400)), 2)) {
    gpu_save(model, path, overwrite = TRUE, verbose = FALSE)
    forge(path, "\"epochs\":1", paste0("\"epochs\":", value))
    expect_message(again <- gpu_load(path), class = "gpukeras_message")
    expect_length(gpu_predict(again, mtcars), nrow(mtcars))
    gpu_save(again, path, overwrite = TRUE, verbose = FALSE) # nothing of it is left
    expect_error(read_history(path), class = "gpukeras_error_data")
  }
  said <- tryCatch(
    {
      gpu_save(model, path, overwrite = TRUE, verbose = FALSE)
      forge(path, "\"epochs\":1", "\"epochs\":[1]")
      gpu_load(path)
    },
    gpukeras_message = function(condition) {
      sub("in file[^ ]*", "in FILE", conditionMessage(condition))
    }
  )
  expect_snapshot(cat(said))
})

test_that("refusals of histories read well", {
  path <- changed_history(with_field("epochs", "two"))
  copy <- file.path(withr::local_tempdir(), "history.json")
  file.copy(path, copy)
  expect_snapshot(read_history(copy), error = TRUE)
})
