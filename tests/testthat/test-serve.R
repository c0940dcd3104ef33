# The server itself is tested in Python; here is what R makes of it, and a real one once.

a_server <- function(...) {
  record <- list(
    handle = "a handle", url = "http://127.0.0.1:8000/", port = 8000L, host = "127.0.0.1",
    token = FALSE, terms = list(), max_batch = 256L, max_wait = 2, max_body = 4194304L
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

# A core whose server runs until it is stopped.
local_served <- function(record = a_server(), frame = parent.frame()) {
  asked <- new.env()
  asked$running <- TRUE
  local_core(frame = frame, function(name, args) {
    if (name == "stop_server") asked$running <- FALSE
    asked$args[[name]] <- args
    answer(switch(name, start_server = record, server_runs = asked$running))
  })
  asked
}

test_that("the core gets the file and the options", {
  asked <- local_served()
  gpu_serve("~/cars.keras", port = 7000, token = "a-secret-of-some-length", max_wait = 5)
  args <- asked$args$start_server
  expect_identical(args$path, path.expand("~/cars.keras"))
  expect_null(args$model)
  expect_identical(args$python, python_path())
  expect_identical(args$options, list(
    port = 7000, host = "127.0.0.1", token = "a-secret-of-some-length", max_batch = 256,
    max_wait = 5, max_body = 4 * 2^20
  ))
})

test_that("wrong arguments are refused", {
  local_served()
  expect_snapshot(error = TRUE, {
    gpu_serve("cars.keras", max_wait = NA)
    gpu_serve(1)
    gpu_serve("https://example.org/cars.keras")
  })
})

test_that("a server answers as gpu_predict() does, until it is stopped", {
  skip_without_tensorflow()
  skip_if_not(can_run_examples(c("uvicorn", "starlette")), "uvicorn and starlette are missing")
  cars <- transform(mtcars, cyl = factor(cyl))
  train <- gpu_dataset(mpg ~ log(wt) + cyl, data = cars, batch_size = 16, seed = 1)
  model <- gpu_mlp(train, units = 4, seed = 1)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  server <- gpu_serve(model, max_batch = 4, token = "a-token-of-the-tests")
  withr::defer(server$stop())
  expect_s3_class(server, c("gpu_server", "gpu_result"), exact = TRUE)
  transform_address <- function(lines) sub(":[0-9]{4,5}/", ":PORT/", lines)
  expect_snapshot(server, transform = transform_address)

  rows <- data.frame(wt = log(cars$wt), cyl = as.character(cars$cyl))
  names(rows)[1] <- "log(wt)"
  body <- tempfile(fileext = ".json")
  writeLines(jsonlite::toJSON(list(rows = rows), digits = NA), body)
  ask <- sprintf(
    "curl -s -H 'Content-Type: application/json' -H 'Authorization: Bearer %s' -d @%s %spredict",
    "a-token-of-the-tests", body, server$url
  )
  skip_if_not(nzchar(Sys.which("curl")), "curl is missing")
  answer <- jsonlite::fromJSON(paste(system(ask, intern = TRUE), collapse = ""))
  expect_equal(answer$predictions, gpu_predict(model, cars), tolerance = 1e-6)

  server$stop()
  expect_false(server$running())
  expect_snapshot(server, transform = transform_address)
})
