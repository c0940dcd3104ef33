rows <- local({
  n <- 60
  data.frame(
    y = cos(seq_len(n)), x = sin(seq_len(n)), z = sqrt(seq_len(n)),
    a = factor(rep(c("u", "v", "w"), 20)), b = rep(c("p", "q"), each = 30),
    on = rep(c(TRUE, FALSE, FALSE, TRUE), 15), e = seq_len(n) / 7
  )
})

split <- function(formula, data = rows) split_formula(formula, data, environment(formula))

# The features as the core encodes them: factors and texts as one column for each level.
encoded <- function(x) {
  columns <- lapply(names(x), function(name) {
    values <- x[[name]]
    if (is_category(values)) stats::model.matrix(~ 0 + f, list(f = factor(values))) else values
  })
  do.call(cbind, columns)
}

test_that("interactions span the space that lm() fits, whatever its contrasts", {
  skip_outside_lane()
  for (formula in c(
    y ~ x * z, y ~ a * x, y ~ a:x, y ~ a * b, y ~ a:b, y ~ (x + z + a)^2, y ~ x / z, y ~ a / x,
    y ~ on * x, y ~ on:b:x, y ~ a * b * x, y ~ x + z %in% a, y ~ a * poly(x, 2),
    y ~ b:splines::ns(z, 3), y ~ . - e + x:on, y ~ a * b - a, y ~ cbind(x, z):b, y ~ factor(e > 4):x
  )) {
    x <- cbind(1, encoded(split(formula)$x)) # a layer has a bias
    fitted <- stats::lm.fit(x, rows$y)$fitted.values
    expect_equal(unname(fitted), unname(fitted(stats::lm(formula, rows))), info = deparse(formula))
  }
})

test_that("interactions of numbers are the columns of model.matrix()", {
  for (formula in c(y ~ x:z, y ~ poly(x, 2):z, y ~ cbind(x, z):poly(e, 2), y ~ x:z:e)) {
    expected <- stats::model.matrix(formula, rows)[, -1, drop = FALSE]
    expect_equal(as.matrix(split(formula)$x), expected, ignore_attr = "dimnames")
    expect_named(split(formula)$x, colnames(expected))
  }
})

test_that("an interaction of factors is one factor, and with a number a column for each level", {
  expect_identical(split(y ~ a:b)$x[["a:b"]], rows$a:factor(rows$b))
  x <- split(y ~ a:on:x)$x
  expect_named(x, c(
    "a=u:on=FALSE:x", "a=v:on=FALSE:x", "a=w:on=FALSE:x", "a=u:on=TRUE:x", "a=v:on=TRUE:x",
    "a=w:on=TRUE:x"
  ))
  expect_identical(x[["a=v:on=TRUE:x"]], rows$x * (rows$a == "v" & rows$on))
})

test_that("new rows have the levels of training, in their columns and none besides", {
  parts <- split(y ~ a:x + a:b)
  apply <- function(data) take_features(read_formula(parts$formula), data)
  expect_identical(apply(rows[60:58, ]), parts$x[60:58, ], ignore_attr = "row.names")
  one <- transform(rows[1, ], a = "v")
  expect_identical(apply(one)[["a=u:x"]], 0)
  expect_identical(apply(one)[["a=v:x"]], one$x)
  error <- expect_error(apply(transform(rows[1:3, ], a = "t")), class = "gpukeras_error_data")
  expect_identical(error$column, "a")
  expect_identical(error$levels, "t")
  expect_snapshot(apply(transform(rows[1:3, ], x = x > 0)), error = TRUE)
  expect_error(apply(transform(rows[1:3, ], x = "a")), class = "gpukeras_error_data")
  expect_identical(apply(transform(rows[1:3, ], x = NA))[["a=u:x"]], rep(NA_real_, 3))
  missing <- transform(rows[1:2, ], a = NA)
  expect_identical(apply(missing)[["a=u:x"]], c(NA_real_, NA_real_))
  expect_identical(is.na(apply(missing)[["a:b"]]), c(TRUE, TRUE))
})

test_that("an intercept or none makes no difference: layers have a bias", {
  expect_identical(split(y ~ 0 + x + a)$x, split(y ~ x + a)$x)
  expect_identical(split(y ~ x + a - 1)$formula, "y ~ x + a")
})

test_that("offsets are added, and their column is the last, apart from one named offset", {
  data <- cbind(rows, offset = rows$z)
  parts <- split(y ~ offset(log(e)) + x + offset + offset(z), data)
  expect_named(parts$x, c("x", "offset", "offset(log(e)) + offset(z)"))
  expect_identical(parts$x[[3]], log(rows$e) + rows$z)
  expect_identical(parts$formula, "y ~ x + offset + offset(log(e)) + offset(z)")
  expect_identical(take_features(read_formula(parts$formula), data), parts$x)
  columns <- mark_offset(as_features(parts$x), name_offset(parts$offsets))$columns
  expect_identical(lapply(columns, `[[`, "offset"), list(NULL, NULL, TRUE))
  expect_identical(
    formula_inputs(NULL, parts),
    list(features = c("x", "offset"), offset = "offset(log(e)) + offset(z)")
  )
})

test_that("an offset is a group after the user's, which may name terms of several columns", {
  parts <- split(y ~ poly(x, 2) + a + offset(e))
  expect_identical(
    formula_inputs(list(one = "poly(x, 2)", two = "a"), parts),
    list(one = c("poly(x, 2)1", "poly(x, 2)2"), two = "a", offset = "offset(e)")
  )
  expect_null(formula_inputs(NULL, parts, recipe = "a model"))
  expect_null(formula_inputs(NULL, split(y ~ x)))
})

test_that("a label among the features is refused", {
  expect_snapshot(error = TRUE, {
    split(y ~ y + x)
    split(log(e) ~ x + a:log(e))
  })
  expect_named(split(log(e) ~ x + e)$x, c("x", "e"))
})

test_that("an interaction of too many levels, and an offset of images, are refused by name", {
  skip_outside_lane()
  wide <- data.frame(y = 1:2000, a = factor(1:2000), b = factor(2000:1), x = 1)
  expect_snapshot(split(y ~ a:x, wide), error = TRUE)
  expect_snapshot(split(y ~ a:b, wide), error = TRUE)
  expect_snapshot(check_no_offset(split(y ~ x + offset(e)), NULL), error = TRUE)
})

test_that("a file's interactions and offsets may call what its other terms may call", {
  skip_outside_lane()
  take <- function(text) take_features(read_formula(text), rows)
  expect_named(take("y ~ x:log(e) + offset(sqrt(z))"), c("x:log(e)", "offset(sqrt(z))"))
  found <- function(text) {
    tryCatch(read_formula(text), gpukeras_error_data = function(condition) condition$found)
  }
  expect_identical(found("y ~ x:system('x')"), "`system()`")
  expect_identical(found("y ~ (x + z):system('x')"), "`(` between its terms")
  expect_identical(found("y ~ x + offset(system('x'))"), "`system()`")
  expect_identical(found("y ~ x + offset()"), "`offset()`")
  expect_identical(found("y ~ x:offset(z)"), "`offset()`")
  expect_length(found(paste0("~", strrep("x:", 1e5), "x"))$features, 1)
})

# With the core ------------------------------------------------------------------------------------

test_that("offsets and interactions reach the model, and new rows of it, in another session too", {
  skip_without_tensorflow(slow = TRUE)
  set.seed(1)
  data <- gpu_dataset(
    y ~ a * x + poly(z, 2) + offset(log(e)), rows,
    validation = 0.2, weights = e, batch_size = 16
  )
  groups <- gpu_recipe(data)$groups
  expect_identical(vapply(groups, `[[`, "", "name"), c("features", "offset"))
  expect_equal(data[1:3, ]$x$offset[, "offset(log(e))"], log(rows$e[1:3]), tolerance = 1e-6)
  expect_equal(as.vector(data[1:3, ]$weights), rows$e[1:3], tolerance = 1e-6)
  expect_snapshot(gpu_recipe(data))
  # The core's training rows are those from which poly() has learned: its columns have mean 0.
  learned <- Filter(function(rule) grepl("^poly", rule$name), gpu_recipe(data)$columns)
  expect_lt(max(abs(vapply(learned, `[[`, 0, "center"))), 1e-8)
  model <- gpu_mlp(data, units = 4, seed = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  expected <- gpu_predict(model, rows)
  expect_equal(gpu_predict(model, data), expected, tolerance = 1e-5)
  expect_equal(gpu_evaluate(model, rows), gpu_evaluate(model, gpu_dataset(
    y ~ a * x + poly(z, 2) + offset(log(e)), rows[60:1, ],
    recipe = model
  )), tolerance = 1e-5)
  path <- withr::local_tempfile(fileext = ".keras")
  suppressMessages(gpu_save(model, path))
  found <- in_second_session(
    function(path, rows) gpu_predict(gpu_load(path), rows), list(path, rows[5:8, ])
  )
  expect_equal(found, expected[5:8], tolerance = 1e-5)
  expect_snapshot(error = TRUE, {
    gpu_predict(model, rows[names(rows) != "e"])
    gpu_predict(model, transform(rows, e = NA_real_))
    gpu_predict(model, transform(rows, e = e - e[2]))
    gpu_predict(model, transform(rows, a = "t"))
  })
})

test_that("pairs of levels that would have one name are refused", {
  skip_without_tensorflow()
  data <- expand.grid(g = c("a", "a:b"), h = c("b:c", "c"), k = 1:2)
  data$y <- seq_len(nrow(data))
  expect_snapshot(gpu_dataset(y ~ g:h, data), error = TRUE)
  expect_s3_class(gpu_dataset(y ~ g + h, data), "gpu_dataset")
})

test_that("an offset may be written in I(), as for glm()", {
  rows <- data.frame(y = 1:4, x = 4:1, e = 1:4)
  found <- split_formula(y ~ x + offset(I(e / 2)), rows, globalenv())$x
  expect_identical(found[["offset(I(e/2))"]], rows$e / 2)
})
