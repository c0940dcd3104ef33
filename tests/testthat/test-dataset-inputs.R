# Several inputs and outputs.

pixels <- array(sin(seq_len(40 * 4 * 4)), c(40, 4, 4, 1))
cars <- data.frame(
  carat = cos(seq_len(40)), cut = factor(rep(c("a", "b", "c", "a"), 10)), depth = seq_len(40) / 7
)
prices <- 3 * cars$carat + 1
both <- list(price = prices, cut = cars$cut)
frame <- cbind(cars, price = prices)

# Two inputs and two outputs; the layers have the names of the data's elements.
two_heads <- function(shapes) {
  keras <- reticulate::import("keras")
  keras$utils$set_random_seed(1L)
  inputs <- lapply(names(shapes), function(name) {
    keras$Input(reticulate::tuple(as.list(as.integer(shapes[[name]]))), name = name)
  })
  flat <- lapply(inputs, function(input) keras$layers$Flatten()(input))
  hidden <- keras$layers$Dense(4L)(keras$layers$Concatenate()(flat))
  outputs <- list(
    keras$layers$Dense(1L, name = "price")(hidden),
    keras$layers$Dense(3L, activation = "softmax", name = "cut")(hidden)
  )
  model <- keras$Model(inputs, outputs)
  model$compile("sgd", loss = list("mse", "sparse_categorical_crossentropy"))
  model
}

same_weights <- function(one, other) {
  expect_equal(one$get_weights(), other$get_weights(), tolerance = 1e-6)
}

test_that("lists of inputs and outputs train as Keras' own fit() does", {
  skip_without_tensorflow()
  x <- list(image = pixels, table = as.matrix(cars[c("carat", "depth")]))
  data <- gpu_dataset(x, both, batch_size = 8, shuffle = FALSE)
  shapes <- list(image = c(4, 4, 1), table = 2)
  one <- two_heads(shapes)
  other <- two_heads(shapes)
  gpu_fit(one, data, epochs = 2, engine = "keras", verbose = FALSE)
  numpy <- reticulate::import("numpy", convert = FALSE)
  plain <- function(values, type) numpy$array(values, dtype = type)
  other$fit(
    reticulate::dict(image = plain(pixels, "float32"), table = plain(x$table, "float32")),
    reticulate::dict(
      price = plain(as.array(prices), "float32"),
      cut = plain(as.array(as.integer(cars$cut) - 1L), "int32")
    ),
    batch_size = 8L, epochs = 2L, shuffle = FALSE, verbose = 0L
  )
  same_weights(one, other)
})

test_that("weights of each output count as in Keras' fit(), named or in the model's order", {
  skip_without_tensorflow(slow = TRUE)
  x <- list(image = pixels, table = as.matrix(cars[c("carat", "depth")]))
  shapes <- list(image = c(4, 4, 1), table = 2)
  weights <- list(price = seq(0.2, 2, length.out = 40), cut = rep(c(1, 3), 20))
  after <- lapply(
    list(weights, unname(weights), weights["price"], list(weights$price, NULL)),
    function(given) {
      model <- two_heads(shapes)
      gpu_fit(
        model, x, both, sample_weight = given, batch_size = 8, shuffle = FALSE, epochs = 1,
        verbose = 0, engine = "keras"
      )
      model
    }
  )
  same_weights(after[[1]], after[[2]])
  same_weights(after[[3]], after[[4]])
  numpy <- reticulate::import("numpy", convert = FALSE)
  plain <- function(values) numpy$array(as.array(values), dtype = "float32")
  other <- two_heads(shapes)
  other$fit(
    reticulate::dict(image = plain(pixels), table = plain(x$table)),
    list(plain(prices), plain(as.integer(cars$cut) - 1L)),
    sample_weight = list(plain(weights$price), plain(weights$cut)),
    batch_size = 8L, epochs = 1L, shuffle = FALSE, verbose = 0L
  )
  same_weights(after[[1]], other)
})

test_that("predictions are a named list, and recipes leave the session", {
  skip_without_tensorflow(slow = TRUE)
  x <- list(image = pixels, table = cars)
  data <- gpu_dataset(x, both, validation = 0.25, batch_size = 8)
  model <- gpu_mlp(data, units = c(8, 4), seed = 1)
  fit <- gpu_fit(model, data, epochs = 1, verbose = FALSE)
  expect_true(all(c("price_loss", "cut_accuracy") %in% as.data.frame(fit)$metric))
  found <- gpu_predict(model, x)
  expect_named(found, c("price", "cut"))
  expect_length(found$price, 40)
  expect_equal(dimnames(found$cut), list(NULL, c("a", "b", "c")))
  classes <- gpu_predict(model, data, type = "class")
  expect_equal(levels(classes$cut), c("a", "b", "c"))
  expect_type(classes$price, "double")
  part <- list(table = cbind(cars[1:3, ], other = "z"), image = pixels[1:3, , , , drop = FALSE])
  expect_equal(gpu_predict(model, part)$price, found$price[1:3], tolerance = 1e-5)
  metrics <- gpu_evaluate(model, list(x, both))
  expect_true(all(c("loss", "price_loss", "cut_loss") %in% names(metrics)))
  expect_equal(gpu_evaluate(model, x, both), metrics)
  recipe <- unserialize(serialize(gpu_recipe(model), NULL))
  expect_equal(gpu_predict(model, x, recipe = recipe), found)
  expect_error(gpu_predict(model, list(image = pixels)), class = "gpukeras_error_data")
  expect_error(gpu_predict(model, cars), class = "gpukeras_error_data")
})

test_that("datasets and recipes say what their inputs and outputs are", {
  skip_without_tensorflow()
  data <- gpu_dataset(list(image = pixels, table = cars), both)
  lines <- format(data)
  expect_true(any(grepl("input: +`image`, 4 x 4 x 1 a row, as they are", lines)))
  expect_true(any(grepl("input: +`table`, 5 from 2 numbers and 1 category", lines)))
  expect_true(any(grepl("output: +`cut`, 3 classes", lines)))
  lines <- format(gpu_recipe(gpu_dataset(
    list(price, cut) ~ ., frame, inputs = list(a = "depth", b = "carat")
  )))
  expect_true(any(grepl("input: +`a`, of depth", lines)))
  expect_true(any(grepl("output: +`price`, numbers", lines)))
})

test_that("columns of a data frame are grouped, also by a formula", {
  skip_without_tensorflow(slow = TRUE)
  groups <- list(numbers = c("carat", "depth"), more = "half")
  rows <- cbind(frame, half = frame$carat > 0)
  one <- gpu_dataset(
    list(price, cut) ~ ., rows, inputs = groups, batch_size = 8, shuffle = FALSE
  )
  other <- gpu_dataset(
    rows, y = c("price", "cut"), inputs = groups, batch_size = 8, shuffle = FALSE
  )
  expect_equal(one$formula, other$formula)
  models <- lapply(1:2, function(run) two_heads(list(numbers = 2, more = 1)))
  gpu_fit(models[[1]], one, epochs = 1, engine = "keras", verbose = FALSE)
  gpu_fit(models[[2]], other, epochs = 1, engine = "keras", verbose = FALSE)
  same_weights(models[[1]], models[[2]])
  found <- gpu_predict(models[[1]], rows[5:1, ])
  expect_equal(found, lapply(gpu_predict(models[[1]], rows), function(values) {
    if (is.matrix(values)) values[5:1, ] else values[5:1]
  }), tolerance = 1e-5)
  expect_named(gpu_evaluate(models[[1]], rows), c("loss", "cut_loss", "price_loss"),
    ignore.order = TRUE
  )
  named <- gpu_dataset(list(p = log(price + 9), cut) ~ carat, rows)
  expect_equal(vapply(named$label$outputs, `[[`, "", "name"), c("p", "cut"))
})

test_that("tables in files have several outputs and groups too", {
  skip_without_tensorflow(slow = TRUE)
  path <- tempfile(fileext = ".csv")
  on.exit(unlink(path))
  utils::write.csv(transform(frame, cut = as.character(cut)), path, row.names = FALSE)
  groups <- list(numbers = "carat", more = "depth")
  file <- gpu_dataset(
    path, y = c("price", "cut"), inputs = groups, batch_size = 8, shuffle = FALSE
  )
  by_formula <- gpu_dataset(list(price, cut) ~ carat + depth, path, inputs = groups)
  expect_equal(by_formula$label$kind, "outputs")
  memory <- gpu_dataset(
    frame, y = c("price", "cut"), inputs = groups, batch_size = 8, shuffle = FALSE
  )
  models <- lapply(1:2, function(run) two_heads(list(numbers = 1, more = 1)))
  gpu_fit(models[[1]], file, epochs = 1, engine = "keras", verbose = FALSE)
  gpu_fit(models[[2]], memory, epochs = 1, engine = "keras", verbose = FALSE)
  same_weights(models[[1]], models[[2]])
  expect_named(gpu_evaluate(models[[1]], path), c("loss", "cut_loss", "price_loss"),
    ignore.order = TRUE
  )
})

test_that("a function gives lists, called anew or once", {
  skip_without_tensorflow(slow = TRUE)
  batches <- function() {
    at <- 0
    function() {
      at <<- at + 1
      if (at > 5) {
        at <<- 0
        return(NULL)
      }
      rows <- 8 * (at - 1) + 1:8
      list(
        x = list(image = pixels[rows, , , , drop = FALSE], table = cars[rows, ]),
        y = list(price = prices[rows], cut = cars$cut[rows])
      )
    }
  }
  models <- lapply(c(FALSE, TRUE), function(cache) {
    data <- gpu_dataset(batches(), cache = cache, shuffle = FALSE, scale = FALSE, batch_size = 8)
    model <- gpu_mlp(data, units = 4, seed = 1)
    # Labels' means differ: the first batch's, or all rows'.
    model$compile("sgd", loss = list(price = "mse", cut = "sparse_categorical_crossentropy"))
    model
  })
  one <- gpu_dataset(batches(), cache = FALSE, shuffle = FALSE, scale = FALSE, batch_size = 8)
  gpu_fit(models[[1]], one, epochs = 1, engine = "keras", verbose = FALSE)
  expect_length(gpu_predict(models[[1]], list(image = pixels, table = cars))$price, 40)
  two <- gpu_dataset(batches(), cache = TRUE, shuffle = FALSE, scale = FALSE, batch_size = 8)
  report <- gpu_fit(models[[2]], two, epochs = 1, engine = "keras", verbose = FALSE)
  expect_s3_class(report, "gpu_history")
})

test_that("a saved dataset keeps its inputs", {
  skip_without_tensorflow()
  path <- tempfile("inputs")
  on.exit(unlink(path, recursive = TRUE))
  data <- gpu_dataset(list(image = pixels, table = cars), both, validation = 0.25)
  gpu_dataset_save(data, path, verbose = FALSE)
  again <- gpu_dataset(path)
  expect_equal(format(again)[2:5], format(data)[2:5])
  expect_error(
    gpu_dataset(path, inputs = list(a = "b")), "settled",
    class = "gpukeras_error_spec"
  )
})

test_that("lists that are no inputs or outputs are refused", {
  skip_without_tensorflow()
  cases <- list(
    list(quote(gpu_dataset(list(pixels, cars), prices)), "`x` must be numeric or a", "data"),
    list(quote(gpu_dataset(list(a = pixels, cars), prices)), "without a name", "data"),
    list(quote(gpu_dataset(list(a = pixels, a = cars), prices)), "has `a` twice", "data"),
    list(quote(gpu_dataset(list(), prices)), "`x` must be numeric or a data frame", "data"),
    list(quote(gpu_dataset(list(a = list(1)), prices)), "`x\\$a` must be numeric", "data"),
    list(quote(gpu_dataset(list(a = pixels, b = cars[1:3, ]), prices)), "`x\\$b` has 3", "data"),
    list(quote(gpu_dataset(cars, list(prices, cars$cut))), "`y` cannot be labels", "data"),
    list(quote(gpu_dataset(cars, list(p = prices, cars$cut))), "without a name", "data"),
    list(quote(gpu_dataset(cars, list(p = prices[1:3]))), "`y\\$p` has 3 rows", "data"),
    list(quote(gpu_dataset(cars, y = c("cut", "cup"))), "names the column `cup`", "data"),
    list(quote(gpu_dataset(cars, prices, inputs = c(a = "b"))), "named list of column", "spec"),
    list(quote(gpu_dataset(cars, prices, inputs = list(a = "cut"))), "is in no group", "spec"),
    list(quote(gpu_dataset(pixels, prices, inputs = list(a = "b"))), "groups columns", "spec"),
    list(quote(gpu_dataset(cars, both, class_weight = "balanced")), "several outputs", "spec"),
    list(quote(gpu_dataset(list(a = pixels), map = identity)), "a single input", "spec")
  )
  for (case in cases) {
    expect_error(eval(case[[1]]), case[[2]], class = paste0("gpukeras_error_", case[[3]]))
    rlang::inject(expect_snapshot(!!case[[1]], error = TRUE))
  }
  shapes <- list(image = c(4, 4, 1), other = 2)
  data <- gpu_dataset(list(image = pixels, table = as.matrix(cars[c(1, 3)])), both)
  expect_error(
    gpu_fit(two_heads(shapes), data, verbose = FALSE), "image, other.*image, table",
    class = "gpukeras_error_model"
  )
})
