# Models and datasets as R values: through files, lists and other processes.

a_marshalled <- function(files = list(model.keras = as.raw(1:3)), record = NULL, kind = "model") {
  new_result(
    list(
      kind = kind, files = files,
      record = record %||% list(
        kind = "Functional", name = "mlp", parameters = 321,
        needs = list(objects = list("house>Scale"), compiled = list(), lambdas = list("dense"))
      ),
      versions = list(gpukeras = "0.1.0", keras = "3.10.0")
    ),
    "gpu_marshalled"
  )
}

test_that("a marshalled model says what it is and what it needs, without Python", {
  skip_outside_lane()
  expect_snapshot(a_marshalled())
  expect_snapshot(a_marshalled(
    list(a = raw(5)), list(text = "<gpu_dataset> 5 rows"), kind = "dataset"
  ))
  local_core(function(name, args) stop("the core was called"))
  expect_snapshot(error = TRUE, {
    gpu_fit(a_marshalled(), mtcars, mtcars$mpg)
    gpu_calibrate(a_marshalled(), mtcars)
    gpu_prune(a_marshalled(), mtcars)
    gpu_calibrate(structure(list(), class = "gpu_mlp_fit"), mtcars)
    gpu_unmarshal(a_marshalled(list(model.keras = "text")))
    gpu_marshal(NULL)
    gpu_unmarshal(1)
  })
})

test_that("files of a stranger's value stay in their folder, and its options are not run", {
  local_core(function(name, args) stop("the core was called"))
  refused <- function(files, kind = "model", ...) {
    expect_error(
      gpu_unmarshal(a_marshalled(files, kind = kind, ...)),
      class = "gpukeras_error_data"
    )
  }
  one <- as.raw(1)
  refused(list("../model.keras" = one))
  refused(list(model.keras = one, "../../x" = one))
  refused(list("/tmp/x.npy" = one), "dataset")
  refused(list("x.npy\n../x" = one), "dataset")
  refused(list(one))
  refused(list())
  refused(list(model.keras = one), "environment")
  refused(list(model.keras = one), c("model", "model"))
  ran <- FALSE
  hostile <- list(options = list(batch_size = quote(ran <<- TRUE)), text = "")
  expect_error(gpu_unmarshal(a_marshalled(
    list("gpukeras-dataset.json" = charToRaw("{}")), hostile, "dataset"
  )))
  expect_false(ran)
})

test_that("functions for targets need nothing but the package's exports", {
  expect_named(target_functions, c("read", "write", "marshal", "unmarshal"))
  for (f in target_functions) {
    alone <- eval(parse(text = deparse(f)), baseenv())
    names <- setdiff(all.names(body(alone)), c("::", "gpukeras", names(formals(alone))))
    expect_true(all(names %in% c(getNamespaceExports("gpukeras"), ls(baseenv()))))
  }
  # An error = "null" of targets makes any target NULL.
  path <- withr::local_tempfile()
  for (value in list(NULL, 1, list(1, NULL))) {
    target_functions$write(value, path)
    expect_identical(target_functions$read(path), value)
    expect_identical(target_functions$unmarshal(target_functions$marshal(value)), value)
  }
  skip_if(rlang::is_installed("targets"), "targets is installed")
  expect_snapshot(error = TRUE, tar_gpu_model())
})

# As targets does it: from their text, in the base environment.
target_function <- function(name) eval(parse(text = deparse(target_functions[[name]])), baseenv())

test_that("models, datasets and lists survive saveRDS(), here and in another session", {
  skip_without_tensorflow()
  silence_tensorflow()
  train <- gpu_dataset(mpg ~ log(wt) + factor(cyl), data = mtcars, batch_size = 8, shuffle = FALSE)
  model <- gpu_mlp(train, units = 3, seed = 1)
  fit <- gpu_fit(model, train, epochs = 2, verbose = FALSE)
  expected <- gpu_predict(model, mtcars)
  loss <- gpu_evaluate(model, train)
  path <- withr::local_tempfile(fileext = ".rds")
  target_function("write")(list(model = model, more = list(data = train, fit = fit)), path)
  held <- readRDS(path)
  expect_s3_class(held$model, "gpu_marshalled")
  expect_output(print(held$model), "model:    Sequential", fixed = TRUE)
  expect_output(print(held$model), "formula:", fixed = TRUE)
  expect_output(print(held$more$data), "32 training", fixed = TRUE)
  expect_identical(gpu_marshal(held), held)
  expect_identical(gpu_predict(held$model, mtcars), expected)
  expect_identical(gpu_evaluate(held$model, held$more$data), loss)
  expect_identical(gpu_recipe(held$model)$formula, gpu_recipe(model)$formula)
  expect_length(the$unmarshalled, 2)
  # What only reads shares one; gpu_unmarshal() makes a new one, which trains on with its optimizer.
  again <- gpu_unmarshal(held)
  gpu_fit(again$model, again$more$data, epochs = 1, verbose = FALSE)
  expect_identical(gpu_predict(held$model, mtcars), expected)
  expect_equal(as_r(again$model$optimizer$iterations$numpy()), 12)
  saved <- withr::local_tempfile(fileext = ".keras")
  gpu_save(held$model, saved, verbose = FALSE)
  expect_identical(gpu_predict(gpu_load(saved), mtcars), expected)

  there <- in_second_session(function(path, read) {
    live <- eval(parse(text = read), baseenv())(path)
    value <- readRDS(path)
    gpu_fit(live$model, live$more$data, epochs = 1, verbose = FALSE)
    list(
      predicted = gpu_predict(value$model, mtcars), rows = dim(live$more$data),
      trained = gpu_marshal(live$model), printed = capture.output(print(value$model))
    )
  }, list(path, deparse(target_functions$read)))
  expect_equal(there$predicted, expected, tolerance = 1e-6)
  expect_identical(there$rows, dim(train))
  expect_false(identical(gpu_predict(there$trained, mtcars), expected))
  expect_identical(there$printed, capture.output(print(held$model)))
})

test_that("a value that cannot be marshalled is named, and a damaged one refused", {
  skip_without_tensorflow()
  silence_tensorflow()
  expect_snapshot(error = TRUE, gpu_marshal(list(1, runtime = reticulate::import("sys"))))
  value <- gpu_marshal(a_model())
  value$files[[1]] <- value$files[[1]][1:100]
  expect_error(gpu_predict(value, matrix(0, 2, 3)), class = "gpukeras_error_model")
  endless <- gpu_dataset(function(batch) list(matrix(0, 2, 3), 1:2))
  expect_error(gpu_marshal(list(rows = endless)), "`x$rows` is a gpu_dataset", fixed = TRUE)
})

# mirai gives R's serialize() a hook for references of a class; this does so by base R.
test_that("what is registered with mirai carries models through serialize()", {
  skip_without_tensorflow()
  silence_tensorflow()
  register_models(NULL) # an old mirai
  kept <- list()
  register_models(function(class, sfunc, ufunc) {
    kept <<- list(class = class, sfunc = sfunc, ufunc = ufunc)
  })
  model <- a_model()
  sent <- list()
  bytes <- serialize(list(1, model = model), NULL, refhook = function(x) {
    if (inherits(x, kept$class)) {
      sent[[length(sent) + 1]] <<- kept$sfunc(x)
      as.character(length(sent))
    }
  })
  back <- unserialize(bytes, refhook = function(id) kept$ufunc(sent[[as.integer(id)]]))
  expect_false(identical(python_key(back$model), python_key(model)))
  rows <- matrix(1:6 / 6, 2)
  expect_identical(gpu_predict(back$model, rows), gpu_predict(model, rows))
})

test_that("a session without TensorFlow prints it, and says what using it needs", {
  skip_outside_lane()
  said <- in_new_session(function(value) {
    library(gpukeras)
    printed <- capture.output(print(value))
    error <- tryCatch(gpu_predict(value, mtcars), error = function(error) class(error)[1])
    list(printed = printed, error = error)
  }, list(a_marshalled()), env = c(RETICULATE_PYTHON = "/usr/bin/python3"))
  expect_match(said$printed, "needs:    Python with Keras 3.10.0", fixed = TRUE, all = FALSE)
  expect_identical(said$error, "gpukeras_error_runtime_missing")
})

test_that("futures in other processes predict with it, and return trained ones", {
  skip_unless_nightly()
  skip_if_not_installed("future")
  silence_tensorflow()
  train <- gpu_dataset(mpg ~ wt, data = mtcars)
  value <- gpu_marshal(gpu_mlp(train, units = 3, seed = 1))
  withr::defer(future::plan("sequential"))
  future::plan("multisession", workers = 2)
  there <- future::future({
    model <- gpukeras::gpu_unmarshal(value)
    before <- gpukeras::gpu_predict(value, mtcars, recipe = gpukeras::gpu_dataset(mpg ~ wt, mtcars))
    gpukeras::gpu_fit(model, gpukeras::gpu_dataset(mpg ~ wt, mtcars), epochs = 2, verbose = FALSE)
    list(before = before, trained = gpukeras::gpu_marshal(model))
  }, seed = TRUE)
  found <- future::value(there)
  expect_equal(found$before, gpu_predict(value, mtcars, recipe = train), tolerance = 1e-6)
  expect_false(identical(gpu_predict(found$trained, mtcars), found$before))
})
