# A dataset's plan in words.

test_that("each kind of label prints", {
  labels <- list(
    list(kind = "binary"), list(kind = "matrix", shape = list(3L)), NULL,
    list(kind = "class", levels = list("no", "yes")),
    list(kind = "number", minimum = -1e-5, maximum = 123456)
  )
  expect_snapshot(for (label in labels) cat(format_label(label), "\n"))
})

test_that("what the stages of a pipeline cost prints", {
  stages <- list(
    list(stage = "gather", row_s = 2e-6, what = "rows of a block"),
    list(stage = "augment", row_s = 6e-6, what = "features as floats, and each row varied")
  )
  expect_snapshot(cat(format_cost(stages), sep = "\n"))
  stages[[1]]$row_s <- stages[[2]]$row_s <- 0
  expect_match(format_cost(stages), "0 %", fixed = TRUE)
})

test_that("features print by what they were made of", {
  kinds <- c("number", "duration", "category", "date", "time", "text")
  columns <- lapply(kinds, function(kind) list(kind = kind))
  images <- list(kind = "images", shape = list(8L, 8L, 3L), scaled = TRUE)
  expect_snapshot({
    cat(format_features(list(shape = list(9L), columns = columns)), "\n")
    cat(format_features(images), "\n")
    cat(format_features(utils::modifyList(images, list(scaled = FALSE))), "\n")
    cat(format_features(list(shape = list(3L), scaled = TRUE, centred = FALSE)), "\n")
  })
})
