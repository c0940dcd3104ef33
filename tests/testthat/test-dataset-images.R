# Images of a data frame: labels, masks and further columns.

size <- c(12, 16)

# Pictures with a bright square, a mask of it, and columns.
image_table <- function(rows = 12, values = c(0, 255), env = parent.frame()) {
  skip_if_not_installed("png")
  folder <- withr::local_tempdir(.local_envir = env)
  d <- data.frame(
    path = file.path(folder, sprintf("%02d.png", seq_len(rows))),
    mask = file.path(folder, sprintf("mask%02d.png", seq_len(rows))),
    count = (seq_len(rows) %% 4) + 0.5, age = sin(seq_len(rows)),
    site = rep(c("A", "B", "C"), length.out = rows)
  )
  for (row in seq_len(rows)) {
    inside <- matrix(FALSE, size[1], size[2])
    inside[row %% 8 + 1:4, (3 * row) %% 12 + 1:4] <- TRUE
    png::writePNG(ifelse(inside, 0.8, 0.04 * row), d$path[row])
    png::writePNG(ifelse(inside, values[2], values[1]) / 255, d$mask[row])
  }
  d$kind <- factor(ifelse(d$count > 2, "many", "few"))
  d
}

layers <- function() reticulate::import("keras")$layers
dims <- function(...) reticulate::tuple(as.list(as.integer(c(...))))

image_model <- function(units, activation = NULL, loss = "mse", channels = 3L) {
  layer <- layers()
  model <- reticulate::import("keras")$Sequential(list(
    layer$Input(dims(size, channels)), layer$Conv2D(4L, 3L), layer$GlobalAveragePooling2D(),
    layer$Dense(as.integer(units), activation)
  ))
  model$compile("adam", loss)
  model
}

mask_model <- function(shape, units = 2L) {
  layer <- layers()
  model <- reticulate::import("keras")$Sequential(list(
    layer$Input(dims(shape, 3)), layer$Conv2D(as.integer(units), 3L,
      padding = "same", activation = "softmax"
    )
  ))
  model$compile("adam", "sparse_categorical_crossentropy")
  model
}

two_inputs <- function(names = c("image", "columns"), columns = 4, shape = size) {
  layer <- layers()
  image <- layer$Input(dims(shape, 3), name = names[1])
  others <- layer$Input(dims(columns), name = names[2])
  joined <- layer$Concatenate()(list(layer$GlobalAveragePooling2D()(image), others))
  model <- reticulate::import("keras")$Model(list(image, others), layer$Dense(1L)(joined))
  model$compile("adam", "mse")
  model
}

test_that("a count is predicted from images of a column", {
  skip_without_tensorflow()
  d <- image_table()
  data <- gpu_dataset(d, y = "count", image = "path", image_size = size, validation = 0.25, seed = 1)
  expect_equal(dim(data), c(12, size, 3))
  expect_equal(names(data), "path")
  expect_equal(as.vector(data[1:12, ]$y), d$count)
  expect_equal(data[1, ]$x[1, , , 1], round(255 * png::readPNG(d$path[1])), tolerance = 1e-6)
  expect_snapshot(data)
  model <- image_model(1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  predicted <- gpu_predict(model, d)
  expect_equal(predicted, gpu_predict(model, data), tolerance = 1e-5)
  expect_equal(gpu_predict(model, d[5:3, c("path", "age")]), predicted[5:3], tolerance = 1e-5)
  expect_equal(gpu_predict(model, d$path), predicted, tolerance = 1e-5)
  expect_equal(gpu_evaluate(model, d), gpu_evaluate(model, data), tolerance = 1e-5)
  expect_equal(
    gpu_evaluate(model, gpu_dataset(d, recipe = data)), gpu_evaluate(model, data),
    tolerance = 1e-5
  )
})

test_that("factor labels are classes, and relative paths start at the working directory", {
  skip_without_tensorflow(slow = TRUE)
  d <- image_table()
  withr::local_dir(dirname(d$path[1]))
  d$path <- factor(basename(d$path))
  data <- gpu_dataset(kind ~ path, d, image = "path", image_size = size, color = "grayscale")
  model <- image_model(2, "softmax", "sparse_categorical_crossentropy", 1L)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  classes <- gpu_predict(model, d, type = "class")
  expect_s3_class(classes, "factor")
  expect_equal(levels(classes), c("few", "many"))
  unlabelled <- gpu_dataset(d, image = "path", image_size = size)
  expect_null(unlabelled[1, ]$y)
})

test_that("masks are varied with their images", {
  skip_without_tensorflow(slow = TRUE)
  d <- image_table()
  data <- gpu_dataset(
    d,
    y = "mask", image = "path", image_size = size, validation = 0.25, seed = 1,
    augment = list(crop = c(8, 8), flip = "both")
  )
  expect_snapshot(data)
  expect_equal(sort(unique(as.vector(data[1:12, ]$y))), 0:1)
  model <- mask_model(c(8, 8))
  for (engine in few_engines()) {
    history <- gpu_fit(model, data, epochs = 1, engine = engine, verbose = FALSE)
    expect_equal(history$engine$engine, engine)
    expect_true(is.finite(gpu_evaluate(model, data)))
  }
  predicted <- gpu_predict(model, d, type = "class")
  expect_equal(dim(predicted), c(12, 8, 8))
  expect_true(all(predicted %in% c(0, 255)))
  expect_equal(gpu_evaluate(model, d), gpu_evaluate(model, data), tolerance = 1e-5)
  whole <- mask_model(size)
  data <- gpu_dataset(mask ~ path, d, image = "path", image_size = size)
  gpu_fit(whole, data, epochs = 1, verbose = FALSE)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(whole, path)
  again <- gpu_load(path)
  expect_equal(gpu_predict(again, d, type = "class"), gpu_predict(whole, d, type = "class"))
  expect_equal(gpu_evaluate(again, d), gpu_evaluate(whole, d))
  other <- image_table(values = c(0, 7))
  expect_error(gpu_evaluate(again, other), "mask01.png in row 1 has the value 7, outside of the")
})

test_that("columns are a second input", {
  skip_without_tensorflow(slow = TRUE)
  d <- image_table()
  data <- gpu_dataset(
    d,
    y = "count", image = "path", columns = c("age", "site"), image_size = size, seed = 1,
    augment = list(flip = "both", crop = c(8, 8)), validation = 0.25
  )
  expect_snapshot(data)
  expect_equal(names(data), c("image", "columns"))
  model <- two_inputs(shape = c(8, 8))
  for (engine in few_engines()) {
    history <- gpu_fit(model, data, epochs = 1, engine = engine, verbose = FALSE)
    expect_equal(history$engine$engine, engine)
    expect_true(is.finite(gpu_evaluate(model, data)))
  }
  predicted <- gpu_predict(model, d)
  expect_equal(predicted, gpu_predict(model, data), tolerance = 1e-5)
  expect_equal(gpu_predict(model, d[3:2, ]), predicted[3:2], tolerance = 1e-5)
  expect_equal(gpu_evaluate(model, d), gpu_evaluate(model, data), tolerance = 1e-5)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path)
  expect_equal(gpu_predict(gpu_load(path), d), predicted)
  folder <- withr::local_tempfile()
  gpu_dataset_save(data, folder)
  expect_equal(gpu_evaluate(model, folder), gpu_evaluate(model, data), tolerance = 1e-5)
})

test_that("inputs and formulas choose and name the columns", {
  skip_without_tensorflow()
  d <- image_table()
  named <- gpu_dataset(
    d,
    y = "count", image = "path", image_size = size,
    inputs = list(person = "age", photo = "path", place = "site")
  )
  expect_equal(names(named), c("person", "photo", "place"))
  d$mask <- NULL
  all <- gpu_dataset(log(count) ~ ., d, image = "path", image_size = size, inputs = NULL)
  expect_equal(names(all), c("image", "columns"))
  expect_equal(as.vector(all[1:12, ]$y), log(d$count), tolerance = 1e-6)
  model <- two_inputs(c("photo", "table"))
  data <- gpu_dataset(
    count ~ site + path + age, d,
    image = "path", image_size = size,
    inputs = list(photo = "path", table = c("site", "age"))
  )
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  expect_equal(gpu_predict(model, d), gpu_predict(model, data), tolerance = 1e-5)
})

test_that("rows without a path are dropped if asked, and keep their places in predictions", {
  skip_without_tensorflow()
  d <- image_table()
  d$path[3] <- NA
  d$age[5] <- NA
  data <- gpu_dataset(
    count ~ path + age, d,
    image = "path", image_size = size, na = "drop"
  )
  expect_equal(nrow(data), 10)
  model <- two_inputs(columns = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  expect_equal(which(is.na(gpu_predict(model, d))), c(3, 5))
  imputed <- gpu_dataset(
    count ~ path + age, d[-3, ],
    image = "path", image_size = size, na = "impute"
  )
  expect_equal(nrow(imputed), 11)
})

test_that("errors name the column and the row", {
  skip_without_tensorflow()
  d <- image_table()
  images <- function(d, y = "count", ...) {
    gpu_dataset(d, y = y, image = "path", image_size = size, ...)
  }
  changed <- function(column, row, value) {
    d[[column]][row] <- value
    d
  }
  folder <- dirname(d$path[1])
  writeLines("text", file.path(folder, "text.png"))
  png::writePNG(matrix(0, 3, 4), file.path(folder, "small.png"))
  png::writePNG(array(runif(12 * 16 * 3), c(12, 16, 3)), file.path(folder, "colours.png"))
  inside <- function(name) file.path(folder, name)
  expect_snapshot(error = TRUE, {
    images(changed("path", 2, "gone.png"))
    images(changed("path", 2, NA))
    images(changed("path", 2, inside("text.png")))
    images(changed("mask", 4, inside("small.png")), "mask")
    images(changed("mask", 4, inside("colours.png")), "mask")
    images(changed("mask", 4, NA), "mask")
    images(d, "mask", classes = c(0, 1))
    images(d, classes = c(0, 1))
    images(d, columns = "height")
    images(d, inputs = list(image = c("path", "age")))
    images(d, inputs = list(image = "path", other = "age"), columns = c("age", "site"))
    images(d, y = d$count)
    images(d, y = c("mask", "count"))
    gpu_dataset(d, y = "count", image = "age")
    gpu_dataset(d, y = "count", image = c("path", "mask"))
    gpu_dataset(d, y = "count", columns = "age")
    gpu_dataset(count ~ age, d, image = "path")
  })
})

test_that("TIFF files are read where tifffile is installed", {
  skip_without_tensorflow()
  skip_if_not(reticulate::py_module_available("tifffile"), "tifffile is not installed")
  d <- image_table()
  tiff <- reticulate::import("tifffile")
  numpy <- reticulate::import("numpy", convert = FALSE)
  for (row in seq_len(nrow(d))) {
    pixels <- numpy$array(round(65535 * png::readPNG(d$path[row])), dtype = "uint16")
    d$path[row] <- sub("png$", "tif", d$path[row])
    tiff$imwrite(d$path[row], pixels)
  }
  data <- gpu_dataset(d, y = "count", image = "path", image_size = size, color = "grayscale")
  expect_equal(max(data[1:12, ]$x), 204, tolerance = 0.01)
})
