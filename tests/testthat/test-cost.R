# What the core reports of a small network of images.
a_cost_record <- function(...) {
  layer <- function(name, kind, shape, params, flops, kept, calls = 1L, by = "formula") {
    list(
      name = name, kind = kind, output_shape = as.list(shape), params = params,
      trainable_params = params, flops = flops, activation_bytes = kept, calls = calls,
      counted_by = by, unknown = list()
    )
  }
  record <- list(
    name = "digits",
    layers = list(
      layer("conv", "Conv2D", c(26L, 26L, 32L), 320L, 432640L, 86528),
      layer("conv_b", "Conv2D", c(24L, 24L, 64L), 18496L, 21307392L, 147456, calls = 2L),
      layer("flatten", "Flatten", 36864L, 0L, 0L, 0),
      layer("dense", "Dense", 10L, 368650L, 737300L, 40)
    ),
    params = 387466L, trainable_params = 18816L, flops = 22477332L, flops_known = TRUE,
    step_flops = 2157823872, activation_bytes = 234024,
    memory = list(
      weights_bytes = 1549864, gradients_bytes = 75264, optimizer_bytes = 150528,
      copies_bytes = 0, row_bytes = 532112, batch_size = 32L, total_bytes = 18803240,
      device = "GPU:0", device_bytes = 8 * 2^30, available_bytes = 7.5 * 2^30,
      largest_batch = 15130L
    ),
    suggestions = list(list(
      id = "separable", layers = list("conv_b", "conv"), text = "They need 7.6 times fewer.",
      flops_share = 0.83, params_share = 0.04, bytes_saved = NULL
    )),
    notes = list()
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

a_cost <- function(...) new_gpu_cost(a_cost_record(...))

# What the core reports of a card; `unknown` are figures without a value.
a_card_cost <- function(..., unknown = character()) {
  figure <- function(name, value, basis, source) {
    list(name = name, value = if (!name %in% unknown) value, basis = basis, source = source)
  }
  card <- list(
    card = "A100 SXM4 40GB", fits = TRUE, bound = "launches", precision = "mixed_bfloat16",
    precision_reason = "compute capability 8.0 has tensor cores for bfloat16 (from 8.0)",
    figures = list(
      figure("rows_bytes", 10400000, "computed", "of the whole training"),
      figure("state_bytes", 107684L, "compiled", "arguments but rows"),
      figure("libraries_bytes", 500 * 2^20, "assumed", "CUDA, cuDNN, cuBLAS"),
      figure("total_bytes", 534795684, "assumed", "a lower bound"),
      figure("card_bytes", 42331013120, "assumed", "NVIDIA A100 Tensor Core GPU data sheet"),
      figure("kernels", 29L, "compiled", "of a step"),
      figure("launches", 1L, "compiled", "of a step; a CUDA graph is one"),
      figure("launches_s", 1.49e-05, "assumed", "0.9 us a launch, 0.5 us a kernel in a graph"),
      figure("arithmetic_s", 1.1e-10, "computed", "156 TFLOP/s in tf32"),
      figure("memory_s", 1.38e-07, "computed", "state in and out at 1555 GB/s"),
      figure("knee", 65536, "assumed", "arithmetic as long as all else")
    ),
    notes = list(), install = FALSE
  )
  changes <- list(...)
  card[names(changes)] <- changes
  a_cost(card = card)
}

# A layer that could not be counted, on a device that is not known.
an_unknown_cost <- function() {
  record <- a_cost_record(flops_known = FALSE, suggestions = list(), notes = list("Not known: x."))
  record$layers[[2]]["flops"] <- record$layers[[2]]["activation_bytes"] <- list(NULL)
  record$layers[[2]]$counted_by <- ""
  record$layers[[3]]$output_shape <- list(NULL, 8L)
  record["step_flops"] <- list(NULL)
  record$memory[c("total_bytes", "row_bytes", "available_bytes", "largest_batch")] <- list(NULL)
  new_gpu_cost(record)
}

test_that("a cost prints layers, totals, memory and advice", {
  expect_snapshot({
    print(a_cost())
    print(a_cost(), most = 2)
    print(an_unknown_cost())
  })
})

test_that("a card prints what was compiled, computed and assumed, and what is not known", {
  not_compiled <- c("kernels", "launches", "launches_s", "knee")
  why <- "No program was compiled: the packages for that are not installed."
  expect_snapshot({
    print(a_card_cost())
    print(a_card_cost(unknown = not_compiled, bound = "", notes = list(why), install = TRUE))
    print(a_card_cost(fits = FALSE, bound = "memory"))
  })
  unknown <- a_card_cost(unknown = c(not_compiled, "total_bytes"), bound = "")
  unknown$card["fits"] <- list(NULL)
  expect_match(format(unknown), "whether it fits is not known", all = FALSE)
})

test_that("a card's figures are a data frame with their basis", {
  card <- a_card_cost(unknown = "knee")$card
  expect_named(card$figures, c("name", "value", "basis", "source"))
  expect_identical(card$figures$value[card$figures$name == "kernels"], 29)
  expect_identical(card$figures$value[card$figures$name == "knee"], NA_real_)
  expect_null(a_cost()$card)
})

test_that("print() gives its argument back, invisibly", {
  capture.output(answer <- withVisible(print(a_cost())))
  expect_identical(answer$value, a_cost())
  expect_false(answer$visible)
})

test_that("memory is compared with the device, or with what was given", {
  fit <- function(...) {
    memory <- utils::modifyList(a_cost_record()$memory, list(...))
    grep("^device", format(a_cost(memory = memory)), value = TRUE)
  }
  expect_match(fit(), "GPU:0 has 8.0 GiB, 7.5 GiB of it free for this: up to about 15,000 rows fit")
  expect_match(fit(device = "", available_bytes = 2^20, largest_batch = 0L), "not a single row")
})

test_that("as.data.frame() has a row a layer, numbers where they are known", {
  frame <- as.data.frame(an_unknown_cost())
  expect_named(frame, c(
    "name", "kind", "output_shape", "params", "trainable_params", "flops", "flops_share",
    "activation_bytes", "calls", "counted_by"
  ))
  expect_identical(frame$output_shape[1:3], c("26 x 26 x 32", "24 x 24 x 64", "? x 8"))
  expect_identical(frame$flops, c(432640, NA, 0, 737300))
  expect_identical(is.na(frame$flops_share), c(FALSE, TRUE, FALSE, FALSE))
  expect_equal(sum(as.data.frame(a_cost())$flops_share), 1)
})

test_that("suggestions are a data frame, also if there are none", {
  expect_identical(a_cost()$suggestions$layers, "conv_b, conv")
  expect_identical(a_cost()$suggestions$bytes_saved, NA_real_)
  expect_identical(nrow(a_cost(suggestions = list())$suggestions), 0L)
})

test_that("both plots draw the layers with the largest shares, and leave the device as it was", {
  skip_outside_lane()
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off())
  before <- graphics::par(c("mai", "mfrow"))
  for (cost in list(a_cost(), an_unknown_cost())) {
    expect_identical(plot(cost, most = 3), cost)
  }
  expect_identical(graphics::par(c("mai", "mfrow")), before)
  shares <- drawn_costs(a_cost(), most = 2)
  expect_identical(levels(shares$layer), c("dense", "conv_b"))
  expect_error(plot(a_cost(layers = list())), class = "gpukeras_error_data")
  expect_snapshot(plot(a_cost(layers = list())), error = TRUE)
  skip_if_not_installed("ggplot2")
  drawn <- ggplot2::ggplot_build(ggplot2::autoplot(an_unknown_cost()))
  expect_identical(nrow(drawn$data[[1]]), 10L) # two of twelve are not known
})

test_that("shapes and batch sizes cross as the core takes them", {
  skip_without_tensorflow()
  model <- a_model()
  seen <- NULL
  local_core(function(name, args) {
    seen <<- args
    answer(a_cost_record())
  })
  gpu_cost(model, batch_size = 64, input_shape = c(28, 28, 1), memory = 8192)
  expect_identical(seen$input_shape, list(28, 28, 1))
  expect_identical(seen[c("batch_size", "memory")], list(batch_size = 64, memory = 8192))
  gpu_cost(model, input_shape = list(a = 5, b = c(2, 3)))
  expect_identical(seen$input_shape, list(a = list(5), b = list(2, 3)))
  expect_null(seen$batch_size)
})

test_that("bad arguments are refused", {
  expect_error(gpu_cost(1), class = "gpukeras_error_spec")
  skip_without_tensorflow()
  model <- a_model(inputs = 4L)
  expect_error(gpu_cost(model, batch_size = NA), class = "gpukeras_error_spec")
  expect_error(gpu_cost(model, memory = "8 GB"), class = "gpukeras_error_spec")
  expect_error(gpu_cost(model, input_shape = 9), "is 9, and the model takes 4")
  expect_error(gpu_cost(model, card = 1), class = "gpukeras_error_spec")
  expect_error(gpu_cost(model, card = "Voodoo 2"), class = "gpukeras_error_spec")
  expect_error(gpu_cost(model, data = list()), class = "gpukeras_error")
})

test_that("data and card reach the core, with the Python that compiles", {
  skip_without_tensorflow()
  root <- withr::local_tempdir()
  withr::local_envvar(GPUKERAS_CARDS_PYTHON = file.path(root, "none"))
  data <- gpu_dataset(a_matrix(60, 4), y = factor(rep(1:3, 20)), batch_size = 12)
  model <- a_model(inputs = 4L)
  cost <- gpu_cost(model, data, card = "rtx 3060")
  expect_identical(cost$memory$batch_size, 12L)
  expect_identical(cost$card$card, "RTX 3060")
  expect_true(cost$card$fits)
  expect_true(cost$card$install)
  rows <- cost$card$figures$value[cost$card$figures$name == "rows_bytes"]
  expect_gt(rows, 60 * 4 * 4)
})

test_that("the Python that compiles is named, or in an environment of its own", {
  root <- withr::local_tempdir()
  withr::local_envvar(GPUKERAS_CARDS_PYTHON = NA)
  expect_identical(cards_python(root), "")
  python <- file.path(root, "r-gpukeras-cards/bin/python")
  dir.create(dirname(python), recursive = TRUE)
  file.create(python)
  expect_identical(cards_python(root), python)
  withr::local_envvar(GPUKERAS_CARDS_PYTHON = python)
  expect_identical(cards_python("nowhere"), python)
})

test_that("a real model's cost is that of the closed formula", {
  skip_without_tensorflow()
  cost <- gpu_cost(a_model(inputs = 4L, units = 3L), batch_size = 10)
  expect_identical(as.numeric(cost$flops), 2 * 4 * 3 + 3 + 5 * 3)
  expect_identical(as.numeric(cost$params), 15)
  expect_identical(cost$layers$kind, c("Flatten", "Dense"))
  expect_identical(cost$memory$batch_size, 10L)
  expect_gt(cost$memory$largest_batch, 1000)
})
