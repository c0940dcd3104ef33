# Windows of time series.

# Hours of two sites, in no order.
hours <- 60
series <- data.frame(
  site = rep(c("A", "B"), each = hours),
  when = rep(as.POSIXct("2024-01-01", tz = "UTC") + 3600 * (seq_len(hours) - 1), 2),
  load = sin(seq_len(2 * hours) / 4) + 2, price = cos(seq_len(2 * hours) / 7),
  holiday = rep(c(FALSE, TRUE), hours)
)
mixed <- series[order(sin(seq_len(2 * hours) * 7)), ]
windows <- function(..., data = mixed, y = "load", window = 8, horizon = 3, group = "site",
                    time = "when") {
  gpu_dataset(data, y, window = window, horizon = horizon, group = group, time = time, ...)
}

test_that("windows are rows of a group in the order of time", {
  skip_without_tensorflow()
  data <- windows(scale = FALSE)
  expect_equal(nrow(data), 100)
  expect_equal(names(data), c("load", "price", "holiday"))
  first <- data[c(1, 51), ]
  expect_equal(dim(first$x), c(2, 8, 3))
  expect_equal(first$x[1, , "load"], series$load[1:8], tolerance = 1e-6)
  expect_equal(first$x[2, , "price"], series$price[61:68], tolerance = 1e-6)
  expect_equal(first$y[1, ], series$load[9:11], tolerance = 1e-6)
  expect_snapshot(windows(validation = 0.2, stride = 2, known = "holiday", seed = 1))
  expect_snapshot(gpu_recipe(data))
})

test_that("predictions are a data frame with group, time and horizon", {
  skip_without_tensorflow()
  data <- windows(y = c("load", "price"), validation = 0.2, seed = 1)
  model <- gpu_mlp(data, seed = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  ahead <- gpu_predict(model, mixed)
  expect_named(ahead, c("site", "when", "horizon", "load", "price"))
  expect_equal(ahead$site, rep(c("A", "B"), each = 3))
  expect_equal(ahead$when, rep(max(series$when) + 3600 * 1:3, 2))
  expect_equal(ahead$horizon, rep(1:3, 2))
  whole <- gpu_predict(model, data)
  expect_equal(nrow(whole), 100 * 3)
  expect_equal(whole$when[1:3], series$when[9:11])
  raw <- model$predict(reticulate::r_to_py(data[100, ]$x), verbose = 0L)
  expect_equal(unlist(whole[298:300, "price"]), raw[1, , 2], tolerance = 1e-5)
  named <- gpu_evaluate(model, mixed)
  expect_equal(named, gpu_evaluate(model, gpu_dataset(mixed, recipe = data)))
})

test_that("a recipe predicts in another session", {
  skip_without_tensorflow(slow = TRUE)
  data <- windows(known = c("holiday", "when"), horizon = 2)
  model <- gpu_mlp(data, seed = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  path <- withr::local_tempfile(fileext = ".rds")
  saveRDS(gpu_recipe(model), path)
  copy <- reticulate::import("keras")$models$clone_model(model)
  copy$set_weights(model$get_weights())
  new <- mixed
  future <- new$when > max(new$when) - 2 * 3600
  new[future, c("load", "price")] <- NA
  ahead <- gpu_predict(copy, new, recipe = readRDS(path))
  expect_equal(ahead, gpu_predict(model, mixed))
  expect_equal(ahead$when[1:2], utils::tail(series$when, 2))
})

test_that("groups and times keep their types", {
  skip_without_tensorflow(slow = TRUE)
  typed <- data.frame(
    a = factor(rep(c("y", "x"), each = 9), levels = c("y", "x")), b = rep(1:2, each = 9),
    day = rep(as.Date("2024-02-20") + 0:8, 2), load = as.double(1:18)
  )
  data <- gpu_dataset(typed, "load", window = 3, group = c("a", "b"), time = "day")
  model <- gpu_mlp(data)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  ahead <- gpu_predict(model, typed)
  expect_equal(ahead[1:4], data.frame(
    a = factor(c("y", "x"), levels = c("y", "x")), b = 1:2,
    day = as.Date(c("2024-02-29", "2024-02-29")), horizon = c(1L, 1L)
  ))
  data <- gpu_dataset(transform(typed, day = as.difftime(rep(1:9, 2), units = "hours")), "load",
    window = 3, group = "a", time = "day", step = as.difftime(60, units = "mins")
  )
  model <- gpu_mlp(data)
  expect_equal(gpu_predict(model, data)$day[1], as.difftime(4, units = "hours"))
})

test_that("what is wrong with a time series is said", {
  skip_without_tensorflow()
  gapped <- series[-c(70, 71), ]
  expect_snapshot(error = TRUE, {
    windows(data = gapped)
    windows(data = rbind(series, series[7, ]))
    windows(data = series, window = 70)
    windows(data = transform(series, when = replace(when, 3, NA)))
    windows(data = transform(series, site = replace(site, 3, NA)))
    windows(group = NULL)
    windows(group = "town")
    windows(y = "lod")
    windows(time = "site")
    windows(known = "load")
    windows(gaps = "skip")
    windows(gaps = "drop", validation = 0.01)
    windows(na = "drop")
    windows(weights = rep(1, 120))
    gpu_dataset(series, "load", horizon = 3)
    windows(recipe = windows())
    gpu_dataset(load ~ price, data = series, window = 3)
  })
  expect_equal(nrow(windows(data = gapped, gaps = "fill")), 100)
  expect_equal(nrow(windows(data = gapped, gaps = "drop")), 50 + 39)
  expect_warning(windows(data = series[1:65, ]), "1 of 2 groups have fewer than 11 rows")
})

test_that("new rows need the columns and the rows of a window", {
  skip_without_tensorflow()
  data <- windows()
  model <- gpu_mlp(data)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  expect_snapshot(error = TRUE, {
    gpu_predict(model, series[1:65, ])
    gpu_predict(model, series[c("site", "when", "load")])
    gpu_predict(model, series[-1])
    gpu_predict(model, as.matrix(series[3:4]))
    gpu_dataset_save(data, withr::local_tempfile())
  })
})
