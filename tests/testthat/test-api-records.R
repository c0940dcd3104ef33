test_that("records become a data frame, NULL becomes NA", {
  records <- list(list(name = "a", size = 1, odd = NULL), list(name = "b", size = NULL, odd = 1:2))
  frame <- records_frame(records)
  expect_identical(frame$name, c("a", "b"))
  expect_identical(frame$size, c(1, NA))
  expect_identical(unclass(frame$odd), list(NA, 1:2))
  expect_identical(nrow(frame), 2L)
})

test_that("columns can be chosen, and no records are no rows", {
  expect_named(records_frame(list(list(b = 1, a = 2)), c("a", "b", "c")), c("a", "b", "c"))
  none <- records_frame(list(), c("a", "b"))
  expect_identical(dim(none), c(0L, 2L))
})
