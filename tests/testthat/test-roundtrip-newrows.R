# New rows are encoded as training encoded theirs: levels, missing values, dates and times.

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
}

# A column that is named as the label is left out as that of a formula is.
for (way in few(c("formula", "split", "named"), 2)) {
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
  more <- list(rep(c("no", "yes"), 15), rep(c(TRUE, FALSE), 15), seq_len(30) / 3)
  labels <- c(few(more, 0), list(factor(rep(c("u", "v", "w"), 10)), cbind(a = sin(1:30), b = 1)))
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
  recipes <- list(data, trained(gpu_dataset(tokyo["at"], times$y)), gpu_recipe(data))
  for (recipe in recipes) {
    expect_identical(staged(gpu_dataset(times["at"], recipe = recipe)), staged(data))
  }
})

test_that("an offset as a zone, as files may have it, is what it says", {
  skip_without_tensorflow()
  fixed <- times["at"]
  attr(fixed$at, "tzone") <- "-03:30"
  expect_equal(
    staged(gpu_dataset(fixed))[[1]][, 6:7], in_day(structure(times$at - 12600, tzone = "UTC")),
    tolerance = 1e-5
  )
})

test_that("a time without a zone is one of TZ, whenever that was set", {
  Sys.timezone()
  withr::local_envvar(TZ = ":Asia/Tokyo")
  expect_identical(time_zone(as.POSIXct("2023-03-26 00:30")), "Asia/Tokyo")
})

for (way in few(c("split", "formula"), 1)) {
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
  skip_without_tensorflow(slow = TRUE)
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

# Matrices -----------------------------------------------------------------------------------------

test_that("columns of a matrix are found by name, wherever rows are given", {
  skip_without_tensorflow()
  x <- matrix(sin(1:90), 30, dimnames = list(NULL, c("a", "b", "c")))
  turned <- cbind(x[, 3:1], more = 9)
  y <- cbind(p = x[, 1], q = 2 * x[, 2])
  model <- trained(gpu_dataset(x, y, scale = TRUE))
  expected <- gpu_predict(model, x)
  expect_equal(gpu_predict(model, turned), expected, tolerance = 1e-6)
  expect_equal(gpu_predict(model, unname(x)), expected, tolerance = 1e-6)
  expect_equal(gpu_evaluate(model, turned, y[, 2:1]), gpu_evaluate(model, x, y), tolerance = 1e-6)
  data <- gpu_dataset(turned, y, recipe = model)
  expect_equal(gpu_predict(model, data), expected, tolerance = 1e-6)
  skip_if_not_installed("Matrix")
  expect_equal(gpu_predict(model, as(turned, "CsparseMatrix")), expected, tolerance = 1e-6)
})

test_that("the columns of an array are those of its last dimension", {
  skip_without_tensorflow()
  x <- array(sin(1:48), c(8, 3, 2), list(NULL, NULL, c("a", "b")))
  model <- trained(gpu_dataset(x, 1:8))
  expect_equal(gpu_predict(model, x[, , 2:1]), gpu_predict(model, x), tolerance = 1e-6)
})

expect_refused(list(
  "a matrix that lacks a column" = case("data", "lacks the column `c`", {
    x <- matrix(sin(1:90), 30, dimnames = list(NULL, c("a", "b", "c")))
    gpu_predict(trained(gpu_dataset(x, x[, 1])), x[, c("a", "b")])
  })
))
