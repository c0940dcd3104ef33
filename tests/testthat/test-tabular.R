test_that("gpu_tabular() passes every option under its name", {
  skip_without_tensorflow()
  data <- gpu_dataset(a_matrix(4), 1:4)
  seen <- NULL
  local_core(function(name, args) {
    if (name != "tabular") {
      return(answer(""))
    }
    seen <<- args$options
    answer("a model")
  })
  gpu_tabular(data, seed = 4)
  expect_named(seen, setdiff(names(formals(gpu_tabular)), "data"), ignore.order = TRUE)
  expect_identical(seen$kind, "tabm")
  expect_identical(seen$numeric_embeddings, "piecewise_linear")
})

test_that("a network for a table trains, predicts factors, and is saved with its levels", {
  skip_without_tensorflow()
  data <- gpu_dataset(Species ~ ., data = iris, encode = "codes", seed = 1)
  model <- gpu_tabular(
    data, "tabm",
    units = 16, blocks = 1, members = 4, seed = 1
  )
  gpu_fit(model, data, epochs = 20, engine = "keras", verbose = FALSE)
  predicted <- gpu_predict(model, iris, type = "class")
  expect_gt(mean(predicted == iris$Species), 0.9)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  expect_identical(gpu_predict(gpu_load(path), iris, type = "class"), predicted)
})

test_that("bad options and other rows are named", {
  skip_without_tensorflow()
  table <- gpu_dataset(Sepal.Length ~ ., data = iris)
  images <- gpu_dataset(array(0, c(4, 3, 3, 1)), 1:4)
  expect_snapshot(error = TRUE, {
    gpu_tabular(table, "forest")
    gpu_tabular(table, "ft_transformer", units = 12)
    gpu_tabular(images)
  })
})
