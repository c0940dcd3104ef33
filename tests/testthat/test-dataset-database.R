sold <- function(rows = 3000) {
  i <- seq_len(rows)
  data.frame(
    price = sin(i) * 3, weight = cos(i), count = i %% 11L,
    kind = c("AA", "UA", "DL")[i %% 3 + 1]
  )
}

rows_of <- function(data) data[seq_len(dim(data)[1])]

test_that("rows of a table and of a query are those of the data frame", {
  skip_without_tensorflow()
  con <- local_sqlite(sold())
  same <- rows_of(gpu_dataset(sold()[-1], sold()$price, validation = 0.2, seed = 1))
  for (data in list(
    gpu_dataset(con, table = "rows", y = "price", validation = 0.2, seed = 1),
    gpu_dataset(con, query = "SELECT * FROM rows;", y = "price", validation = 0.2, seed = 1),
    gpu_dataset(price ~ ., data = con, table = "rows", validation = 0.2, seed = 1)
  )) {
    expect_equal(data$plan$rows, 2400)
    expect_equal(rows_of(data), same)
  }
})

test_that("columns are weights, several labels, or left out", {
  skip_without_tensorflow()
  con <- local_sqlite(sold())
  data <- gpu_dataset(con, table = "rows", y = "price", weights = "count", seed = 1)
  expect_true(data$weighted)
  expect_false("count" %in% colnames(rows_of(data)$x))
  two <- gpu_dataset(con, table = "rows", y = c("price", "count"), columns = "weight")
  expect_equal(vapply(two$label$outputs, `[[`, "", "name"), c("price", "count"))
  expect_equal(dim(rows_of(gpu_dataset(con, table = "rows", columns = "weight"))$x), c(3000, 1))
})

test_that("a database sends only the columns named of a table", {
  skip_without_tensorflow()
  con <- local_sqlite(sold())
  DBI::dbExecute(con, "CREATE VIEW odd AS SELECT *, abs(-9223372036854775807 - 1) AS bad FROM rows")
  data <- gpu_dataset(con, table = "odd", y = "price", columns = "weight", weights = "count")
  expect_equal(dim(rows_of(data)$x), c(3000, 1))
  same <- gpu_dataset(price ~ weight, data = con, table = DBI::Id(table = "odd"), weights = "count")
  expect_equal(rows_of(same), rows_of(data))
  expect_error(gpu_dataset(con, table = "odd", y = "price"), class = "gpukeras_error_data")
  expect_error(
    gpu_dataset(con, table = "rows", y = "price", columns = "wait"), "no column `wait`",
    class = "gpukeras_error_data"
  )
})

test_that("a model trains on a query and predicts data frames", {
  skip_without_tensorflow()
  con <- local_sqlite(sold())
  data <- gpu_dataset(con, query = "SELECT price, weight, kind FROM rows", y = "price", seed = 1)
  DBI::dbDisconnect(con) # the dataset needs it no more
  model <- gpu_mlp(data, units = 4)
  history <- gpu_fit(model, data, epochs = 1, verbose = FALSE)
  expect_true(all(is.finite(as.data.frame(history)$value)))
  expect_length(gpu_predict(model, sold(5)), 5)
})

test_that("other rows are encoded by the recipe, whose columns alone are read", {
  skip_without_tensorflow()
  con <- local_sqlite(sold())
  train <- gpu_dataset(price ~ weight + kind, data = con, table = "rows")
  DBI::dbExecute(con, "ALTER TABLE rows ADD COLUMN raw BLOB")
  again <- gpu_dataset(con, table = "rows", y = "price", recipe = train)
  expect_equal(rows_of(again), rows_of(train))
  model <- gpu_mlp(train, units = 4)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  expect_equal(gpu_evaluate(model, again), gpu_evaluate(model, train))
  expect_length(gpu_predict(model, again), 3000)
})

test_that("an interrupt of the database ends the dataset", {
  skip_without_tensorflow()
  con <- local_sqlite(sold())
  give <- function(names) keep_condition(rlang::interrupt())
  interrupted <- tryCatch(
    stream_dataset(list(call = give), "price"), interrupt = function(condition) "interrupt"
  )
  expect_equal(interrupted, "interrupt")
})

test_that("a lazy table of dplyr is a query", {
  skip_without_tensorflow()
  skip_if_not_installed("dbplyr")
  con <- local_sqlite(sold())
  lazy <- dplyr::select(dplyr::filter(dplyr::tbl(con, "rows"), weight > 0), price, weight, kind)
  data <- gpu_dataset(lazy, y = "price", shuffle = FALSE)
  kept <- subset(sold(), weight > 0)
  expect_equal(rows_of(data), rows_of(gpu_dataset(price ~ weight + kind, data = kept)))
  expect_equal(rows_of(gpu_dataset(price ~ weight, data = lazy))$y, rows_of(data)$y)
})

test_that("types of SQLite arrive, and one may show itself late", {
  skip_without_tensorflow()
  frame <- data.frame(
    whole = 1:6, number = c(0.5, NaN, 1:4), text = c(NA, letters[1:5]), late = c(NA, 1:5),
    y = as.numeric(1:6)
  )
  con <- local_sqlite(frame)
  DBI::dbExecute(con, "ALTER TABLE rows ADD COLUMN big INTEGER")
  DBI::dbExecute(con, "UPDATE rows SET big = 4611686018427387905") # 2^62 + 1
  DBI::dbExecute(con, "ALTER TABLE rows ADD COLUMN raw BLOB")
  query <- "SELECT whole, number, text, late + 1.5 AS late, y FROM rows"
  data <- gpu_dataset(con, query = query, y = "y", na = "impute", scale = FALSE, shuffle = FALSE)
  found <- rows_of(data)$x
  expect_equal(
    colnames(found),
    c(
      "whole", "number", "number=NA", paste0("text=", letters[1:5]), "text=NA", "late", "late=NA"
    )
  )
  expect_equal(unname(found[, "late=NA"]), c(1, 0, 0, 0, 0, 0))
  expect_equal(unname(found[, "number=NA"]), c(0, 1, 0, 0, 0, 0))
  expect_equal(unname(found[-1, "late"]), 1:5 + 1.5)
  big <- function() gpu_dataset(con, table = "rows", y = "y", columns = c("whole", "big"))
  expect_warning(expect_warning(big(), "are rounded"), "beyond 2\\^53")
  expect_error(
    gpu_dataset(con, table = "rows", y = "y", na = "drop"),
    "column `raw` of type binary",
    class = "gpukeras_error_data"
  )
})

test_that("a type that changes behind the first rows is an error", {
  skip_without_tensorflow()
  con <- local_sqlite(data.frame(a = 1:3000, y = 1))
  query <- "SELECT CASE WHEN a < 2000 THEN a ELSE a + 0.5 END AS b, y FROM rows"
  error <- expect_error(gpu_dataset(con, query = query, y = "y"), class = "gpukeras_error_data")
  expect_equal(error$row, 1000)
  expect_match(error$hint, "CAST")
})

test_that("what a database refuses is an error of the call", {
  skip_without_tensorflow()
  con <- local_sqlite(sold(10))
  expect_snapshot(error = TRUE, {
    gpu_dataset(con, query = "SELEC 1", y = "price")
    gpu_dataset(con, table = "nothing", y = "price")
    gpu_dataset(con, table = "rows", y = "cost")
    gpu_dataset(con, table = "rows", y = 1:10)
    gpu_dataset(con, table = "rows", y = "price", columns = 1)
    gpu_dataset(con, query = "SELECT * FROM rows WHERE weight > 2", y = "price")
    gpu_dataset(con, query = "SELECT weight, weight, price FROM rows", y = "price")
    gpu_dataset(con, y = "price")
    gpu_dataset(con, query = 1, y = "price")
    gpu_dataset(con, query = "DELETE FROM rows", y = "price")
    gpu_dataset(con, table = "rows", y = "price", speed = 2)
    gpu_dataset(price ~ log(weight), data = con, table = "rows")
  })
  # RSQLite would warn of a result that is left open.
  expect_no_warning(DBI::dbGetQuery(con, "SELECT 1"))
  DBI::dbDisconnect(con)
  expect_snapshot(error = TRUE, gpu_dataset(con, table = "rows", y = "price"))
})

test_that("64-bit integers, zones and durations cross as they are", {
  frame <- data.frame(n = 1:2)
  frame$time <- .POSIXct(c(0.25, NA), tz = "Europe/Paris")
  frame$wait <- as.difftime(c(2, NA), units = "mins")
  frame$raw <- list(as.raw(1), NULL)
  chunk <- as_chunk(frame)
  expect_equal(chunk$rows, 2)
  expect_equal(vapply(chunk$columns, `[[`, "", "kind"), c("integer", "time", "duration", "other"))
  expect_equal(chunk$columns[[2]]$zone, "Europe/Paris")
  expect_equal(as.vector(chunk$columns[[3]]$values), c(120, NA))
  expect_named(chunk$columns[[4]], c("name", "kind", "rows"))
  expect_equal(as_chunk(frame, list("wait", "n"))$columns[[2]]$name, "n")
  skip_if_not_installed("bit64")
  big <- chunk_column(bit64::as.integer64("4611686018427387905"), "big")
  expect_equal(big$kind, "integer64")
  expect_null(attributes(big$values)$class)
})

test_that("PostgreSQL: types, one run of the query, and a transaction of the user's", {
  skip_without_tensorflow(slow = TRUE)
  skip_outside_lane()
  con <- local_postgres("open sesame")$connect()
  run <- function(...) DBI::dbClearResult(DBI::dbSendQuery(con, paste(...)))
  run(
    "CREATE TABLE t AS SELECT g AS i, g::int8 AS big, g::float8 / 7 AS x, g % 2 = 0 AS l,",
    "'k' || (g % 3) AS s, DATE '2024-02-28' + g AS d,",
    "TIMESTAMPTZ '2024-03-31 00:00+00' + g * INTERVAL '1 minute' AS z,",
    "CASE WHEN g % 5 > 0 THEN g::float8 END AS m, g::float8 AS y",
    "FROM generate_series(1, 60000) AS g"
  )
  data <- gpu_dataset(con, query = "SELECT * FROM t ORDER BY y", y = "y", na = "drop", scale = FALSE)
  expect_equal(data$plan$rows, 48000)
  first <- data[1:4]
  expect_equal(as.vector(first$y), 1:4)
  expect_equal(unname(first$x[, "x"]), 1:4 / 7, tolerance = 1e-6)
  expect_equal(unname(first$x[, "l"]), c(0, 1, 0, 1))
  expect_true(all(c("s=k0", "d", "d:weekday_sin", "z:daytime_cos", "m") %in% colnames(first$x)))

  # The order of a query that differs each time is that of its one run.
  query <- "SELECT x, y FROM t ORDER BY random()"
  data <- gpu_dataset(con, query = query, y = "y", scale = FALSE, shuffle = FALSE)
  parts <- rows_of(data)
  expect_equal(as.vector(parts$y), as.vector(parts$x) * 7, tolerance = 1e-5)
  expect_false(identical(as.vector(parts$y), sort(as.vector(parts$y))))

  run("BEGIN")
  run("CREATE TEMP TABLE own AS SELECT 1.5::float8 AS a, 2.5::float8 AS y")
  expect_equal(gpu_dataset(con, table = "own", y = "y")$plan$rows, 1)
  expect_equal(DBI::dbGetQuery(con, "SELECT count(*) AS n FROM own")$n, 1)
  run("ROLLBACK")
  expect_equal(nrow(DBI::dbGetQuery(con, "SELECT name FROM pg_cursors")), 0)
})

test_that("a server that dies midway is an error with the row, and nothing is left", {
  skip_without_tensorflow(slow = TRUE)
  skip_outside_lane()
  server <- local_postgres("open sesame")
  con <- server$connect()
  rows <- query_rows(con, "SELECT g AS x, g::float8 AS y FROM generate_series(1, 200000) AS g")
  chunks <- 0
  give <- function(names) {
    chunks <<- chunks + 1
    if (chunks == 3) server$stop()
    rows$give(names)
  }
  before <- list.files(tempdir())
  error <- expect_error(
    stream_dataset(list(call = give), "y", cache = "disk"),
    "broke off behind row 51,000",
    class = "gpukeras_error_data"
  )
  expect_equal(error$row, 51000)
  rows$close()
  gc()
  expect_equal(list.files(tempdir()), before)
  expect_no_match(format(error), "open sesame")
})

test_that("passwords are in no error, print or recipe", {
  skip_without_tensorflow()
  skip_outside_lane()
  server <- local_postgres("open sesame")
  con <- server$connect()
  query <- "SELECT g::float8 AS x, g::float8 AS y FROM generate_series(1, 100) AS g"
  data <- gpu_dataset(con, query = query, y = "y")
  saved <- capture.output(utils::str(unclass(gpu_recipe(data)), nchar.max = 1e6))
  folder <- withr::local_tempdir()
  gpu_dataset_save(data, file.path(folder, "rows"))
  kept <- list.files(folder, pattern = "json$", recursive = TRUE, full.names = TRUE)
  shown <- c(format(data), saved, unlist(lapply(kept, readLines, warn = FALSE)))
  for (secret in c("open sesame", "tester", "generate_series", server$port)) {
    expect_false(any(grepl(secret, shown, fixed = TRUE)), info = secret)
  }
  url <- "SELECT * FROM dblink('postgresql://tester:open@127.0.0.1/postgres password=sesame', '')"
  error <- expect_error(gpu_dataset(con, query = url, y = "y"), class = "gpukeras_error_data")
  expect_no_match(format(error), "open@|sesame")
})

test_that("a statement that gives no columns is refused before it runs", {
  skip_outside_lane()
  con <- local_sqlite(sold(20))
  DBI::dbExecute(con, "CREATE TABLE kept AS SELECT * FROM rows")
  count <- function() DBI::dbGetQuery(con, "SELECT count(*) AS n FROM kept")$n
  for (query in c(
    "DELETE FROM kept", "-- all of it\n delete from kept;", "/* a */ DROP TABLE kept",
    "UPDATE kept SET price = 0", "INSERT INTO kept SELECT * FROM rows",
    "WITH some AS (SELECT 1 AS one) DELETE FROM kept WHERE count = 1",
    "CREATE TABLE other AS SELECT * FROM rows", "CREATE TEMP VIEW other AS SELECT 1", "BEGIN"
  )) {
    error <- expect_error(gpu_dataset(con, query = query), class = "gpukeras_error_spec", info = query)
    expect_match(conditionMessage(error), "gives no columns. It was not run.", fixed = TRUE)
    expect_identical(error$arg, "query")
    expect_identical(count(), 20L)
  }
  expect_identical(sort(DBI::dbListTables(con)), c("kept", "rows"))
  expect_identical(unique(DBI::dbGetQuery(con, "SELECT price FROM kept")$price != 0), TRUE)
})

test_that("a query that gives columns runs, whatever its first word", {
  skip_without_tensorflow()
  con <- local_sqlite(sold(20))
  for (query in c(
    "WITH some AS (SELECT * FROM rows) SELECT * FROM some", "VALUES (1, 2), (3, 4)",
    "-- DELETE\nSELECT price FROM rows", "PRAGMA collation_list",
    "SELECT 'it is RETURNING' AS said, price FROM rows"
  )) {
    expect_s3_class(suppressWarnings(gpu_dataset(con, query = query)), "gpu_dataset")
  }
})

test_that("databases that do not tell are asked by the first word", {
  expect_error(check_columns_of("drop table a"), "(DROP)", fixed = TRUE, class = "gpukeras_error_spec")
  expect_error(check_columns_of("/* x */\n(MERGE INTO a"), class = "gpukeras_error_spec")
  for (query in c(
    "SELECT 1", "INSERT INTO a VALUES (1) RETURNING b", "DELETE FROM a OUTPUT DELETED.b",
    "EXEC procedure", "SHOW TABLES", "TABLE a", "deleted"
  )) {
    expect_silent(check_columns_of(query))
  }
})
