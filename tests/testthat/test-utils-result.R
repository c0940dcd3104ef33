test_that("a record becomes a result, its notes a character vector", {
  result <- new_result(list(a = 1, notes = list("one", "two")), "gpu_example")
  expect_s3_class(result, c("gpu_example", "gpu_result"), exact = TRUE)
  expect_identical(result$notes, c("one", "two"))
  expect_identical(new_result(list(notes = list()), "gpu_example")$notes, character())
  expect_named(new_result(list(a = 1), "gpu_example"), "a")
})

test_that("a data frame stays one", {
  frame <- new_result_frame(data.frame(a = 1:2), "gpu_example")
  expect_s3_class(frame, c("gpu_example", "gpu_result", "data.frame"), exact = TRUE)
  expect_identical(class(as.data.frame(frame)), "data.frame")
})

test_that("print() shows what format() gives, and gives its argument back, invisibly", {
  local_answer(list(kind = "constant", warmup = 0, rate = 0.1))
  schedule <- schedule_constant(0.1)
  shown <- capture.output(answer <- withVisible(print(schedule)))
  expect_identical(shown, format(schedule))
  expect_identical(answer, list(value = schedule, visible = FALSE))
})

test_that("every class that has lines is printed by the common method", {
  methods <- ls(getNamespace("gpukeras"), pattern = "^format[.]")
  expect_gt(length(methods), 20)
  own <- ls(getNamespace("gpukeras"), pattern = "^print[.]")
  expect_setequal(own, paste0("print.", c(
    "gpu_dataset", "gpu_install", "gpu_result", "summary.gpu_dataset"
  )))
})

test_that("fields are aligned behind their names; what is NULL is no line", {
  expect_identical(
    format_fields("<title>", rate = "0.1", none = NULL, "a line", "on device" = c("a", "b")),
    c("<title>", "rate:     0.1", "a line", "on device: a", "on device: b")
  )
  expect_identical(format_fields(rate = "0.1", width = 9), "rate:    0.1")
})

test_that("a table says how many rows it leaves out", {
  skip_without_core()
  expect_identical(format_more(3, "$layers"), "  ... and 3 more: $layers")
  expect_null(format_more(0, "$layers"))
})
