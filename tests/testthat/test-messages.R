# Every text of a condition is in a snapshot: somebody has read it as users get it.

# The texts in calls of functions that raise or inform, of each function of the package.
texts_of_conditions <- function() {
  found <- list()
  walk <- function(code, ours, place) {
    if (is.call(code)) {
      called <- paste(deparse(code[[1]]), collapse = "")
      if (called == "covr:::count") return() # which stands before each expression for its time
      ours <- ours || grepl("(^|::)(cli_)?(abort|warn|inform)(_|$)", called)
      for (part in as.list(code)[-1]) if (!missing(part)) walk(part, ours, place)
    } else if (ours && is.character(code)) {
      found[[place]] <<- c(found[[place]], code)
    }
  }
  namespace <- asNamespace("gpukeras")
  for (name in ls(namespace, all.names = TRUE)) {
    value <- get(name, namespace)
    if (is.function(value)) walk(body(value), FALSE, name)
  }
  found
}

as_words <- function(text) trimws(gsub("[^A-Za-z0-9]+", " ", paste(text, collapse = " ")))

# The longest piece of a text between what cli and sprintf() put in; names of classes have no spaces.
longest_piece <- function(text) {
  text <- gsub("\\{[.][a-z]+ ([^{}]*)\\}", "\\1", text)
  pieces <- as_words_each(strsplit(text, "\\{[^{}]*\\}|%[0-9.]*[sdf]")[[1]])
  pieces[which.max(nchar(pieces))]
}

as_words_each <- function(texts) vapply(texts, as_words, "", USE.NAMES = FALSE)

test_that("every text of a condition is in a snapshot", {
  skip_outside_lane()
  folder <- test_path("_snaps")
  skip_if_not(dir.exists(folder), "the snapshots are not here")
  files <- list.files(folder, "[.]md$", full.names = TRUE, recursive = TRUE)
  seen <- as_words(unlist(lapply(files, readLines, encoding = "UTF-8", warn = FALSE)))
  texts <- texts_of_conditions()
  expect_gt(length(texts), 50)
  for (place in names(texts)) {
    pieces <- unlist(lapply(texts[[place]], longest_piece))
    pieces <- pieces[lengths(strsplit(pieces, " ")) >= 3]
    unseen <- pieces[!vapply(pieces, grepl, TRUE, x = seen, fixed = TRUE)]
    expect(!length(unseen), sprintf("%s() says what no snapshot has: %s", place, toString(unseen)))
  }
})

test_that("slips of every day are told by their cause, in R words", {
  skip_without_tensorflow()
  silence_tensorflow()
  rows <- data.frame(y = sin(1:80), z = cos(1:80))
  rows$price <- format(1000 + seq_len(80) * 37, big.mark = ",", trim = TRUE)
  rows$share <- paste(seq_len(80) / 4, "%")
  rows$wide <- sub(".", ",", format(seq_len(80) / 7, digits = 4, trim = TRUE), fixed = TRUE)
  rows$gaps <- ifelse(seq_len(80) %% 9 == 0, "-", format(seq_len(80) / 7, digits = 4, trim = TRUE))
  x <- as.matrix(rows[c("y", "z")])
  model <- a_model(2, 1, "linear", loss = "mse", metrics = list())
  gpu_fit(model, x, rows$y, epochs = 1, verbose = FALSE)
  framed <- trained(gpu_dataset(y ~ z, rows))
  told <- data.frame(y = sin(1:20), sure = rep(c(TRUE, FALSE), 10))
  logical <- trained(gpu_dataset(y ~ sure, told))
  two <- trained(gpu_dataset(sure ~ y, told))
  as_text <- transform(told, sure = as.character(sure))
  other <- a_model(2, 1, "linear", loss = "mse", metrics = list())
  other$compile(model$optimizer, "mse")
  expect_snapshot(error = TRUE, {
    gpu_dataset(y ~ price, rows)
    gpu_dataset(y ~ share, rows)
    gpu_dataset(y ~ wide, rows)
    gpu_dataset(y ~ gaps, rows)
    gpu_dataset(price ~ z, rows)
    gpu_predict(model, x[1, ])
    gpu_evaluate(model, x[1, ], rows$y[1])
    gpu_predict(framed, rows[1:3, "z"])
    gpu_load("model.weights.h5")
    gpu_load("model.h5")
    gpu_save(model, "model.weights.h5")
    gpu_fit(other, x, rows$y, epochs = 1)
    gpu_predict(logical, as_text)
    gpu_evaluate(two, as_text)
  })
})
