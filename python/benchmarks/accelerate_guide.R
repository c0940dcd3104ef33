# Runs one guide of keras3 for bench_accelerate.R: FILE keras|accelerate OUT.

arguments <- commandArgs(trailingOnly = TRUE)
downloads <- "get_file|download|https?://[^\"']*[.](csv|zip|tgz|tar)|application_|imdb|reuters"

# The code blocks that are run, without those that download.
read_blocks <- function(file) {
  lines <- readLines(file)
  starts <- grep("^```\\{r", lines)
  blocks <- lapply(starts, function(start) {
    end <- start + match(TRUE, startsWith(lines[-seq_len(start)], "```"))
    if (grepl("eval *= *(F|FALSE)\\b", lines[start])) return(character())
    lines[seq_len(end - start - 1) + start]
  })
  Filter(function(block) length(block) > 0 && !any(grepl(downloads, block)), blocks)
}

# What keras3 downloads, made up: images with a bright patch at a place that depends on the class.
made_up <- function(shape, classes, rows) {
  part <- function(count) {
    y <- rep_len(seq_len(classes) - 1L, count)
    x <- array(as.integer(127 * (1 + sin(seq_len(count * prod(shape))^2))), c(count, shape))
    for (class in seq_len(classes)) {
      at <- 1L + (class - 1L) %% shape[1]
      rows <- y == class - 1L
      if (length(shape) == 2) x[rows, at, ] <- 255L else x[rows, at, , ] <- 255L
    }
    list(x = x, y = array(y))
  }
  function(...) list(train = part(rows), test = part(10000L))
}

library(keras3)
if (arguments[2] == "accelerate") gpukeras::accelerate()
reticulate::py_run_string("
import time, keras, functools
records, inside = [], []
def follow(own):
    @functools.wraps(own)
    def fit(self, *args, **kwargs):
        if inside:
            return own(self, *args, **kwargs)
        inside.append(1)
        began = time.perf_counter()
        try:
            history = own(self, *args, **kwargs)
        finally:
            inside.pop()
        random = ('Dropout', 'Random', 'Noise', 'Sampling', 'SeedGenerator')
        layers = [type(one).__name__ for one in self._flatten_layers()]
        records.append({
            'seconds': time.perf_counter() - began,
            'history': {k: [float(v) for v in vs] for k, vs in history.history.items()},
            'random': any(word in name for word in random for name in layers),
        })
        return history
    return fit
keras.Model.fit = follow(keras.Model.fit)
")
frame <- new.env(parent = globalenv())
frame$dataset_mnist <- made_up(c(28L, 28L), 10L, 60000L)
frame$dataset_fashion_mnist <- frame$dataset_mnist
frame$dataset_cifar10 <- made_up(c(32L, 32L, 3L), 10L, 50000L)
# What is known so far, also where the process is stopped later.
write_fits <- function(block) {
  made <- reticulate::py$records
  for (index in setdiff(seq_along(made), seq_along(blocks_of))) blocks_of <<- c(blocks_of, block)
  fits <- Map(function(one, at) c(one, block = at, engine = "keras", reason = ""), made, blocks_of)
  if (arguments[2] == "accelerate") {
    calls <- gpukeras::accelerate_report()
    calls <- calls[calls$call == "fit" & !grepl("^made within", calls$reason), ]
    for (index in seq_len(min(nrow(calls), length(fits)))) {
      fits[[index]][c("engine", "reason")] <- calls[index, c("engine", "reason")]
    }
  }
  jsonlite::write_json(
    list(fits = fits), arguments[3],
    auto_unbox = TRUE, digits = NA, na = "string"
  )
}

blocks <- read_blocks(arguments[1])
blocks_of <- integer() # the block of each fit
for (block in seq_along(blocks)) {
  set_random_seed(1L)
  tryCatch(
    utils::capture.output(eval(parse(text = blocks[[block]]), frame)),
    error = function(condition) {
      message("block ", block, ": ", substr(conditionMessage(condition), 1, 150))
    }
  )
  write_fits(block)
}
