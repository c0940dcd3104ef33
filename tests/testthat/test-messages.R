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
