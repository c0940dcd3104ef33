# Every type down to Python and up again, through the real core.

# What Python holds of a dataset: features, labels, weights.
staged <- function(data) {
  lapply(as_r(data$handle$arrays), as_r)
}

# A model that answers with its own input.
identity_model <- function(shape) {
  keras <- import_keras()
  keras$Sequential(list(
    keras$layers$Input(as.list(as.integer(shape))), keras$layers$Activation("linear")
  ))
}

# Features that give each class away, and a model that has learned them.
learned <- function(y) {
  x <- outer(as.character(y), unique(as.character(y)), "==") + 0
  data <- gpu_dataset(x, y, batch_size = 10, seed = 1)
  model <- gpu_mlp(data, units = 8, learning_rate = 0.05, seed = 1)
  gpu_fit(model, data, epochs = 20, engine = "superstep", verbose = 0)
  list(model = model, x = x)
}

# Down ---------------------------------------------------------------------------------------------

test_that("matrices of each type are staged as their values", {
  skip_without_tensorflow()
  whole <- matrix(c(-3:7, 1e6), 4)
  for (x in list(whole + 0.5, matrix(as.integer(whole), 4), whole > 2)) {
    expect_identical(staged(gpu_dataset(x))[[1]], x + 0)
  }
})

test_that("arrays of three to five dimensions keep their order", {
  skip_without_tensorflow()
  for (shape in list(c(6, 4, 3), c(5, 4, 3, 2), c(4, 2, 3, 2, 3))) {
    x <- array(seq_len(prod(shape)), shape)
    expect_identical(staged(gpu_dataset(x))[[1]], x + 0)
  }
})

test_that("a vector is one column", {
  skip_without_tensorflow()
  expect_identical(staged(gpu_dataset(c(1, 2, 3)))[[1]], matrix(c(1, 2, 3)))
})

test_that("each kind of column is encoded as R would", {
  skip_without_tensorflow()
  frame <- mixed_frame(12)
  frame$unused <- factor(rep("u", 12), levels = c("never", "u"))
  expected <- cbind(
    frame$double, frame$integer, frame$logical,
    outer(as.character(frame$factor), c("c", "a", "b"), "=="),
    outer(as.character(frame$ordered), c("low", "high"), "=="),
    outer(frame$character, c("x", "y"), "=="),
    frame[["a b"]], frame[["{braces}"]], 0, 1
  )
  data <- gpu_dataset(y ~ ., frame, scale = FALSE)
  expect_equal(staged(data)[[1]], expected, tolerance = 1e-6)
  expect_equal(staged(data)[[2]], as.array(frame$y), tolerance = 1e-6)
  codes <- gpu_dataset(y ~ factor + unused, frame, encode = "codes")
  expect_identical(staged(codes)[[1]], cbind(as.integer(frame$factor) - 1, 1))
})

test_that("standardised numbers have mean 0 and deviation 1", {
  skip_without_tensorflow()
  frame <- data.frame(a = c(1e6, 1e6 + 1, 1e6 + 2), constant = 7, logical = c(TRUE, FALSE, TRUE))
  rows <- staged(gpu_dataset(frame))[[1]]
  expect_equal(rows[, 1], c(-1, 0, 1) * sqrt(1.5), tolerance = 1e-6)
  expect_identical(rows[, 2], c(0, 0, 0))
  expect_identical(rows[, 3], c(1, 0, 1))
  scaled <- staged(gpu_dataset(cbind(c(1, 2, 3), c(10, 30, 50)), scale = TRUE))[[1]]
  expect_equal(scaled[, 2], c(-1, 0, 1) * sqrt(1.5), tolerance = 1e-6)
})

test_that("labels of each type are staged as their values or codes from 0", {
  skip_without_tensorflow()
  x <- a_matrix(4)
  labels <- function(y) as.vector(staged(gpu_dataset(x, y))[[2]])
  levelled <- factor(c("b", "a", "b", "b"), levels = c("b", "z", "a"))
  expect_identical(labels(levelled), c(0L, 2L, 0L, 0L))
  expect_identical(labels(c("b", "a", "b", "b")), c(1L, 0L, 1L, 1L))
  expect_identical(labels(c(TRUE, FALSE, TRUE, TRUE)), c(1, 0, 1, 1))
  expect_identical(labels(c(0, 1, 1, 0)), c(0, 1, 1, 0))
  expect_identical(labels(c(5L, -2L, 0L, 1L)), c(5, -2, 0, 1))
  expect_identical(labels(c(0.5, -2, 0, 1e6)), c(0.5, -2, 0, 1e6))
  columns <- matrix(1:8, 4)
  expect_identical(staged(gpu_dataset(x, columns))[[2]], columns + 0)
})

test_that("weights are staged for each row", {
  skip_without_tensorflow()
  y <- c(0, 1, 1, 1)
  weighted <- gpu_dataset(a_matrix(4), y, weights = 1:4, class_weight = c("0" = 2, "1" = 3))
  expect_identical(as.vector(staged(weighted)[[3]]), c(2, 6, 9, 12))
})

# Up -----------------------------------------------------------------------------------------------

test_that("a model's output comes up in its own shape", {
  skip_without_tensorflow()
  x <- a_matrix(7)
  expect_equal(gpu_predict(identity_model(3), x), x, tolerance = 1e-6)
  for (shape in list(c(6, 4, 3), c(5, 4, 3, 2), c(4, 2, 3, 2, 3))) {
    x <- array(seq_len(prod(shape)), shape)
    expect_identical(gpu_predict(identity_model(shape[-1]), x), x + 0)
  }
})

test_that("many rows come up in the order they were given", {
  skip_without_tensorflow()
  x <- matrix(as.double(1:20000), ncol = 1)
  expect_identical(gpu_predict(identity_model(1), x), as.vector(x))
  data <- gpu_dataset(x, shuffle = TRUE, validation = 0.5)
  expect_identical(gpu_predict(identity_model(1), data), as.vector(x))
})

test_that("a number is a plain vector, in the labels' own unit", {
  skip_without_tensorflow()
  x <- a_matrix(100)
  y <- 5000 + 1000 * x[, 1]
  data <- gpu_dataset(x, y, batch_size = 10, seed = 1)
  model <- gpu_mlp(data, units = 8, learning_rate = 0.02, seed = 1)
  gpu_fit(model, data, epochs = 20, engine = "superstep", verbose = 0)
  predicted <- gpu_predict(model, x)
  expect_type(predicted, "double")
  expect_null(attributes(predicted))
  expect_gt(stats::cor(predicted, y), 0.99)
  expect_lt(mean(abs(predicted - y)), 150)
})

test_that("a factor's levels come back, those that no row has too", {
  skip_without_tensorflow()
  y <- factor(rep(c("v", "u", "w"), 20), levels = c("w", "never seen", "v", "u"))
  fit <- learned(y)
  class <- gpu_predict(fit$model, fit$x, type = "class")
  expect_identical(class, y)
  response <- gpu_predict(fit$model, fit$x)
  expect_identical(dim(response), c(60L, 4L))
  expect_identical(colnames(response), levels(y))
  expect_equal(rowSums(response), rep(1, 60), tolerance = 1e-5)
  expect_identical(colnames(response)[max.col(response)], as.character(y))
})

test_that("two levels are a factor too, with the probability of the second", {
  skip_without_tensorflow()
  y <- factor(rep(c("yes", "no", "no"), 20), levels = c("yes", "no"))
  fit <- learned(y)
  expect_identical(gpu_predict(fit$model, fit$x, type = "class"), y)
  response <- gpu_predict(fit$model, fit$x)
  expect_null(dim(response))
  expect_identical(response > 0.5, y == "no")
})

test_that("texts come back as a factor of the texts", {
  skip_without_tensorflow()
  y <- rep(c("b c", "{a}", "`d`"), 20)
  fit <- learned(y)
  class <- gpu_predict(fit$model, fit$x, type = "class")
  expect_identical(as.character(class), y)
  expect_setequal(levels(class), y)
})

test_that("logicals come back as logicals, 0 and 1 as 0 and 1", {
  skip_without_tensorflow()
  y <- rep(c(TRUE, FALSE, FALSE), 20)
  fit <- learned(y)
  expect_identical(gpu_predict(fit$model, fit$x, type = "class"), y)
  expect_type(gpu_predict(fit$model, fit$x), "double")
  numbers <- learned(y + 0)
  class <- gpu_predict(numbers$model, numbers$x, type = "class")
  expect_true(is.numeric(class))
  expect_equal(class, y + 0)
  expect_null(attributes(class))
})

test_that("several outputs are a matrix with the labels' column names", {
  skip_without_tensorflow()
  x <- a_matrix(30)
  y <- cbind("first one" = x[, 1], "{second}" = x[, 2])
  predicted <- gpu_predict(trained(gpu_dataset(x, y)), x[1:5, ])
  expect_identical(dim(predicted), c(5L, 2L))
  expect_identical(colnames(predicted), colnames(y))
  unnamed <- gpu_predict(trained(gpu_dataset(x, unname(y))), x[1:5, ])
  expect_null(dimnames(unnamed))
})

# New rows are encoded as training encoded them ----------------------------------------------------

frame <- mixed_frame()
models <- list()

# A model for each way to give a data frame; made once.
model_of <- function(way) {
  skip_without_tensorflow()
  if (is.null(models[[way]])) {
    features <- frame[names(frame) != "y"]
    data <- switch(way,
      formula = gpu_dataset(y ~ ., frame, seed = 1),
      named = gpu_dataset(frame, "y", seed = 1),
      split = gpu_dataset(features, frame$y, seed = 1)
    )
    models[[way]] <<- trained(data)
  }
  models[[way]]
}

for (way in c("formula", "named", "split")) {
  test_that(paste("rows do not depend on which others are there:", way), {
    model <- model_of(way)
    all <- gpu_predict(model, frame)
    expect_gt(stats::sd(all), 0)
    expect_equal(gpu_predict(model, frame[7, ]), all[7], tolerance = 1e-5)
    expect_equal(gpu_predict(model, frame[c(9, 2, 2), ]), all[c(9, 2, 2)], tolerance = 1e-5)
  })

  test_that(paste("columns are found by name:", way), {
    model <- model_of(way)
    all <- gpu_predict(model, frame)
    expect_equal(gpu_predict(model, frame[rev(names(frame))]), all, tolerance = 1e-5)
    more <- cbind(other = Sys.Date(), frame[names(frame) != "y"])
    expect_equal(gpu_predict(model, more), all, tolerance = 1e-5)
  })

  test_that(paste("levels are found by label:", way), {
    model <- model_of(way)
    all <- gpu_predict(model, frame)
    other <- frame
    other$factor <- factor(as.character(frame$factor)) # in another order
    other$character <- factor(frame$character, levels = c("y", "x"))
    other$ordered <- as.character(frame$ordered)
    expect_equal(gpu_predict(model, other), all, tolerance = 1e-5)
    expect_equal(gpu_predict(model, droplevels(other[3, ])), all[3], tolerance = 1e-5)
  })

  test_that(paste("new levels are an error that names them:", way), {
    model <- model_of(way)
    new <- frame
    new$character[5] <- "{new}"
    error <- expect_error(gpu_predict(model, new), "{new}", fixed = TRUE)
    expect_s3_class(error, "gpukeras_error_data")
    expect_identical(error$column, "character")
    expect_identical(unlist(error$levels), "{new}")
    new <- frame
    levels(new$factor) <- c("c", "a", "new b")
    expect_match(one_line(expect_error(gpu_predict(model, new))), "did not see: new b")
    declared <- frame
    declared$factor <- factor(frame$factor, levels = c("declared, not used", "a", "b", "c"))
    expect_equal(gpu_predict(model, declared), gpu_predict(model, frame), tolerance = 1e-5)
  })

  test_that(paste("a missing column is named:", way), {
    model <- model_of(way)
    for (name in c("double", "a b", "{braces}")) { # double() is a function of R, too
      error <- expect_error(
        gpu_predict(model, frame[setdiff(names(frame), name)]),
        class = "gpukeras_error_data"
      )
      expect_identical(error$column, name)
    }
  })

  test_that(paste("a column of another kind is refused:", way), {
    model <- model_of(way)
    changed <- frame
    changed$double <- as.character(changed$integer)
    error <- expect_error(gpu_predict(model, changed), class = "gpukeras_error_data")
    expect_identical(error$column, "double")
  })
}

test_that("errors about new rows read well", {
  model <- model_of("split")
  new <- frame
  new$factor <- factor(rep(c("new 1", "new 2"), 20))
  expect_snapshot(gpu_predict(model, new), error = TRUE)
  expect_snapshot(gpu_predict(model, frame["double"]), error = TRUE)
})

test_that("names that are no names in R are columns like others", {
  skip_without_tensorflow()
  odd <- data.frame(1:6, c(2, 4, 1, 3, 6, 5), c("u", "v", "u", "v", "u", "v"), 1:6)
  names(odd) <- c("a b", "`tick`", "{if}", "y")
  by_formula <- trained(gpu_dataset(y ~ ., odd, seed = 1))
  split <- trained(gpu_dataset(odd[1:3], odd$y, seed = 1))
  expect_equal(gpu_predict(by_formula, odd), gpu_predict(split, odd), tolerance = 1e-5)
  expect_equal(gpu_predict(by_formula, odd[3:1]), gpu_predict(split, odd), tolerance = 1e-5)
})

test_that("transformations of a formula are applied again", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(log(disp) ~ log(hp) + I(wt^2) + factor(cyl), mtcars))
  all <- gpu_predict(model, mtcars)
  expect_equal(gpu_predict(model, mtcars[5, ]), all[5], tolerance = 1e-5)
  without_label <- mtcars[names(mtcars) != "disp"]
  expect_equal(gpu_predict(model, without_label), all, tolerance = 1e-5)
})

test_that("test data made with `recipe` is encoded as training's", {
  skip_without_tensorflow()
  data <- gpu_dataset(y ~ ., frame, seed = 1)
  test <- gpu_dataset(y ~ ., frame[5:9, ], recipe = data)
  expect_equal(staged(test)[[1]], staged(data)[[1]][5:9, ], tolerance = 1e-6)
  expect_error(
    gpu_predict(model_of("formula"), gpu_dataset(y ~ ., frame[5:9, ])),
    "by its own means",
    class = "gpukeras_error_data"
  )
})

# Missing values -----------------------------------------------------------------------------------

# A frame with a missing value in each column of each kind; row 1 and the later ones lack none.
holes <- mixed_frame(30)
for (i in 1:6) holes[i + 1, i] <- NA
lacking <- rowSums(is.na(holes)) > 0

test_that("matrices of each type are imputed by median or mode, with an indicator", {
  skip_without_tensorflow()
  doubles <- cbind(c(1, NA, 3, 10), c(4, 3, 2, 1))
  expected <- cbind(c(1, 3, 3, 10), c(0, 1, 0, 0), 4:1)
  expect_identical(staged(gpu_dataset(doubles, na = "impute"))[[1]], expected)
  storage.mode(doubles) <- "integer"
  expect_identical(staged(gpu_dataset(doubles, na = "impute"))[[1]], expected)
  logicals <- cbind(c(TRUE, NA, FALSE, TRUE))
  imputed <- staged(gpu_dataset(logicals, na = "impute"))[[1]]
  expect_identical(imputed[, 2], c(0, 1, 0, 0))
  expect_identical(imputed[c(1, 3, 4), 1], c(1, 0, 1))
})

test_that("rows without missing values are encoded alike, whatever the policy", {
  skip_without_tensorflow()
  dropped <- gpu_dataset(y ~ ., holes, na = "drop", scale = FALSE)
  whole <- gpu_dataset(y ~ ., holes[!lacking, ], scale = FALSE)
  expect_identical(staged(dropped), staged(whole))
  imputed <- gpu_dataset(y ~ ., holes[-2, ], na = "impute", scale = FALSE)
  names <- unlist(lapply(imputed$columns, function(column) {
    c(rep(FALSE, max(1, length(column$levels))), if (column$indicator) TRUE)
  }))
  rows <- staged(imputed)[[1]]
  expect_identical(rows[!lacking[-2], !names], staged(whole)[[1]])
  expect_identical(sum(rows[, names]), 5)
  expect_identical(sum(rows[!lacking[-2], names]), 0)
})

test_that("rows that training would leave out are predicted as NA, in their place", {
  skip_without_tensorflow()
  features <- holes[setdiff(names(holes), "y")]
  lacks <- unname(rowSums(is.na(features)) > 0)
  labels <- list(
    rep(c("no", "yes"), 15), factor(rep(c("u", "v", "w"), 10)), rep(c(TRUE, FALSE), 15),
    seq_len(30) / 3, cbind(a = sin(1:30), b = 1)
  )
  for (y in labels) {
    model <- trained(gpu_dataset(features, y, na = "drop"))
    all <- as.matrix(gpu_predict(model, features))
    rest <- as.matrix(gpu_predict(model, features[!lacks, ]))
    expect_equal(all[!lacks, ], rest[, ], tolerance = 1e-5)
    expect_true(all(is.na(all[lacks, ]) & !is.nan(all[lacks, ])))
    if (!is.numeric(y)) {
      class <- gpu_predict(model, features, type = "class")
      expect_identical(is.na(class), lacks)
      expect_identical(class[!lacks], gpu_predict(model, features[!lacks, ], type = "class"))
    }
  }
  expect_identical(gpu_predict(model, features[lacks, ])[, "a"], rep(NA_real_, sum(lacks)))
})

test_that("evaluation leaves out the same rows, and says how many", {
  skip_without_tensorflow()
  data <- gpu_dataset(y ~ ., holes, na = "drop")
  model <- trained(data)
  expect_message(loss <- gpu_evaluate(model, holes), "dropped: 6 of 30 rows with missing values")
  expect_equal(loss, gpu_evaluate(model, data), tolerance = 1e-5)
  expect_silent(gpu_evaluate(model, holes[!lacking, ]))
  expect_error(gpu_evaluate(model, holes[2:3, ]), "leaves no row", class = "gpukeras_error_data")
  expect_snapshot(loss <- gpu_evaluate(model, holes))
})

test_that("new rows are imputed as training learned, one by one", {
  skip_without_tensorflow()
  x <- holes[setdiff(names(holes), "y")]
  data <- gpu_dataset(x, seq_len(30) / 3, na = "impute")
  model <- trained(data)
  all <- gpu_predict(model, x)
  expect_equal(gpu_predict(model, data), all, tolerance = 1e-5)
  expect_false(anyNA(all))
  expect_equal(gpu_predict(model, x[2, ]), all[2], tolerance = 1e-5)
  whole <- x
  whole[["a b"]][9] <- NA # missing in new data only
  filled <- replace(x[["a b"]], 9, stats::median(x[["a b"]]))
  expect_equal(
    gpu_predict(model, whole), gpu_predict(model, replace(x, "a b", list(filled))),
    tolerance = 1e-5
  )
})

test_that("missing values are refused where training refused them", {
  skip_without_tensorflow()
  model <- model_of("split")
  new <- frame
  new$logical[3] <- NA
  error <- expect_error(gpu_predict(model, new), class = "gpukeras_error_data")
  expect_identical(error$column, "logical")
  expect_snapshot(gpu_predict(model, new), error = TRUE)
})

# Dates and times ----------------------------------------------------------------------------------

# Sine and cosine of a share of the circle, from R's own calendar.
on_circle <- function(share) cbind(sin(2 * pi * share), cos(2 * pi * share))
on_calendar <- function(x) {
  lt <- as.POSIXlt(x)
  year <- lt$year + 1900
  days <- ifelse(year %% 4 == 0 & (year %% 100 != 0 | year %% 400 == 0), 366, 365)
  cbind(on_circle((lt$wday + 6) %% 7 / 7), on_circle(lt$yday / days))
}
in_day <- function(x) {
  lt <- as.POSIXlt(x)
  on_circle((lt$hour * 3600 + lt$min * 60 + lt$sec) / 86400)
}
standard <- function(x) (x - mean(x)) / sqrt(mean((x - mean(x))^2))

times <- data.frame(
  day = as.Date("1968-12-29") + 0:39 * 397,
  at = as.POSIXct("2023-03-26 00:30", tz = "Europe/Berlin") + 0:39 * 13 * 3600,
  long = as.difftime(1:40 / 4, units = "hours"), y = 1:40
)

test_that("dates and times are staged as R's own calendar has them", {
  skip_without_tensorflow()
  for (scale in c(TRUE, FALSE)) {
    rows <- staged(gpu_dataset(y ~ ., times, scale = scale))[[1]]
    long <- as.double(times$long)
    expected <- cbind(
      standard(as.double(times$day)), on_calendar(times$day),
      standard(as.double(times$at)), on_calendar(times$at), in_day(times$at),
      if (scale) standard(long) else long
    )
    expect_equal(rows, unname(expected), tolerance = 1e-5)
  }
})

test_that("a time is what its own zone's clocks show, and the recipe keeps the zone", {
  skip_without_tensorflow()
  tokyo <- times
  attr(tokyo$at, "tzone") <- "Asia/Tokyo"
  data <- gpu_dataset(tokyo["at"])
  expect_identical(data$columns[[1]]$zone, "Asia/Tokyo")
  expect_equal(staged(data)[[1]][, 6:7], in_day(tokyo$at), tolerance = 1e-5)
  again <- gpu_dataset(times["at"], recipe = data)
  expect_identical(staged(again), staged(data))
})

for (way in c("formula", "split")) {
  test_that(paste("new dates and times are encoded as training's:", way), {
    skip_without_tensorflow()
    data <- if (way == "formula") gpu_dataset(y ~ ., times) else gpu_dataset(times[1:3], times$y)
    model <- trained(data)
    all <- gpu_predict(model, times)
    expect_equal(gpu_predict(model, data), all, tolerance = 1e-5)
    other <- times[11:12, ]
    attr(other$at, "tzone") <- "America/New_York"
    units(other$long) <- "weeks"
    other$day <- structure(as.integer(other$day), class = "Date")
    expect_equal(gpu_predict(model, other), all[11:12], tolerance = 1e-5)
    other$at <- as.POSIXlt(other$at)
    expect_equal(gpu_predict(model, other), all[11:12], tolerance = 1e-5)
    expect_named(gpu_evaluate(model, times, y = times$y))
  })

  test_that(paste("a date or time that became another type is refused by name:", way), {
    skip_without_tensorflow()
    data <- if (way == "formula") gpu_dataset(y ~ ., times) else gpu_dataset(times[1:3], times$y)
    model <- trained(data)
    changes <- list(
      day = as.character(times$day), day = as.double(times$day), at = format(times$at),
      at = as.Date(times$at), long = as.double(times$long)
    )
    for (i in seq_along(changes)) {
      new <- replace(times, names(changes)[i], list(changes[[i]]))
      error <- expect_error(gpu_predict(model, new), class = "gpukeras_error_data")
      expect_identical(error$column, names(changes)[i])
    }
    if (way == "split") {
      new <- replace(times, "day", list(as.character(times$day)))
      expect_snapshot(gpu_predict(model, new), error = TRUE)
    }
  })
}

test_that("missing dates and times follow the policy", {
  skip_without_tensorflow()
  lacking <- times
  lacking$day[2] <- NA
  lacking$at[3] <- NA
  lacking$long[4] <- NA
  error <- expect_error(gpu_dataset(y ~ ., lacking), class = "gpukeras_error_data")
  expect_identical(error$column, "day")
  dropped <- gpu_dataset(y ~ ., lacking, na = "drop")
  expect_identical(staged(dropped), staged(gpu_dataset(y ~ ., times[-(2:4), ])))
  expect_identical(is.na(gpu_predict(trained(dropped), lacking)), 1:40 %in% 2:4)
  imputed <- gpu_dataset(y ~ ., lacking, na = "impute")
  middle <- as.double(stats::median(lacking$day, na.rm = TRUE))
  expect_equal(imputed$columns[[1]]$fill, middle)
  rows <- staged(imputed)[[1]]
  expect_identical(rows[2, 2:6], c(0, 0, 0, 0, 1))
  expect_identical(rows[3, 8:14], c(0, 0, 0, 0, 0, 0, 1))
  expect_identical(rows[4, 16], 1)
  model <- trained(imputed)
  expect_equal(
    gpu_predict(model, lacking[4:2, ]), gpu_predict(model, lacking)[4:2], tolerance = 1e-5
  )
})

# Repeating ----------------------------------------------------------------------------------------

test_that("set.seed() makes a whole training repeat exactly", {
  skip_without_tensorflow()
  run <- function() {
    set.seed(42)
    data <- gpu_dataset(y ~ ., frame, validation = 0.25, batch_size = 8)
    model <- gpu_mlp(data, units = 8, dropout = 0.25)
    fit <- gpu_fit(model, data, epochs = 3, engine = "superstep", verbose = 0)
    list(fit$history, gpu_predict(model, frame))
  }
  first <- run()
  expect_identical(run(), first)
  expect_false(first[[1]]$loss[1] == first[[1]]$loss[2])
})

# Beyond what float32 or R itself can hold ---------------------------------------------------------

test_that("whole numbers beyond 2^24 are warned of, unless they are standardised", {
  skip_without_tensorflow()
  frame <- data.frame(id = 2^24 + 0:3, y = c(1, 2, 4, 8))
  expect_warning(
    data <- gpu_dataset(frame, "y", scale = FALSE), "`id`.*2\\^24",
    class = "gpukeras_warning_data"
  )
  expect_equal(staged(data)[[1]][, 1], c(2^24, 2^24, 2^24 + 2, 2^24 + 4))
  expect_warning(gpu_dataset(frame, "y"), NA)
  expect_warning(gpu_dataset(cbind(2^24 + 1), 1), class = "gpukeras_warning_data")
  expect_warning(gpu_dataset(cbind(1), 2^24 + 1), class = "gpukeras_warning_data")
})

test_that("64-bit integers are staged as their values", {
  skip_without_tensorflow()
  skip_if_not_installed("bit64")
  whole <- bit64::as.integer64(c(1, -5, 2^20, 7))
  frame <- data.frame(y = c(1, 2, 3, 5))
  frame$x <- whole
  expected <- c(1, -5, 2^20, 7)
  expect_identical(staged(gpu_dataset(frame, "y", scale = FALSE))[[1]][, 1], expected)
  wide <- structure(whole, dim = c(2, 2)) # matrix() would drop the class
  expect_identical(staged(gpu_dataset(wide, 1:2))[[1]], matrix(expected, 2))
  expect_identical(as.vector(staged(gpu_dataset(cbind(1:4), whole))[[2]]), expected)
  frame$x[2] <- NA
  expect_error(gpu_dataset(frame, "y"), "missing", class = "gpukeras_error_data")
  expect_warning(gpu_dataset(cbind(1), bit64::as.integer64("9007199254740993")), "precision")
})

# Files and memory ---------------------------------------------------------------------------------

# A data frame as a Parquet file, with all of its types; a CSV has no factors.
save_parquet <- function(frame, path) {
  skip_if(is.null(tryCatch(reticulate::import("pyarrow"), error = function(e) NULL)), "no pyarrow")
  arrow <- reticulate::import("pyarrow", convert = FALSE)
  columns <- lapply(frame, function(x) {
    if (is.factor(x)) {
      codes <- arrow$array(as.list(as.integer(x) - 1L), arrow$int32())
      arrow$DictionaryArray$from_arrays(codes, arrow$array(as.list(levels(x))))
    } else if (inherits(x, "POSIXct")) {
      arrow$array(as.list(as.double(x)), arrow$float64())$cast(arrow$int64())$cast(
        arrow$timestamp("s", "Europe/Berlin")
      )
    } else if (inherits(x, "Date")) {
      arrow$array(as.list(as.integer(x)), arrow$int32())$cast(arrow$date32())
    } else {
      arrow$array(as.list(x))
    }
  })
  table <- arrow$Table$from_arrays(unname(columns), names = as.list(names(frame)))
  reticulate::import("pyarrow.parquet")$write_table(table, path)
  path
}

test_that("a Parquet file's columns are staged as those of the data frame", {
  skip_without_tensorflow()
  frame <- mixed_frame(30)
  frame$unused <- factor(rep("u", 30), levels = c("never", "u"))
  frame[["gr\u00f6\u00dfe"]] <- seq_len(30) / 7
  frame$day <- as.Date("2024-02-28") + seq_len(30)
  frame$time <- as.POSIXct("2024-03-30 22:30:00", tz = "Europe/Berlin") + 3600 * seq_len(30)
  frame$ordered <- factor(frame$ordered, ordered = FALSE)
  path <- save_parquet(frame, withr::local_tempfile(fileext = ".parquet"))
  ours <- gpu_dataset(frame, "y", seed = 1)
  theirs <- gpu_dataset(path, "y", seed = 1)
  rules <- function(data) vapply(data$columns, `[[`, "", "name")
  expect_setequal(rules(theirs), rules(ours))
  expect_identical(staged(theirs)[[2]], staged(ours)[[2]])
  expect_equal(staged(theirs)[[1]], staged(ours)[[1]], tolerance = 1e-6)
})

test_that("one row, one column and five dimensions stay what they are", {
  skip_without_tensorflow()
  path <- withr::local_tempfile(fileext = ".csv")
  writeLines(c("a,y", "1.5,2"), path)
  rows <- staged(gpu_dataset(path, "y", scale = FALSE))
  expect_identical(rows, list(matrix(1.5), as.array(2)))
  writeLines("a,y", path)
  expect_error(gpu_dataset(path, "y"), class = "gpukeras_error_data")
  x <- array(as.numeric(1:48), c(2, 2, 3, 2, 2))
  saved <- withr::local_tempfile()
  gpu_dataset_save(gpu_dataset(x, c("b", "a")), saved, verbose = FALSE)
  back <- gpu_dataset(saved)
  expect_identical(staged(back)[[1]], x)
  expect_identical(unlist(back$label$levels), c("a", "b"))
})
