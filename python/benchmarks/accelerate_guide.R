# Runs one guide of keras3 for bench_accelerate.R: FILE keras|before|after OUT. OUT gets what is
# known after each code block, so that it is there where the process is stopped later.

arguments <- commandArgs(trailingOnly = TRUE)
file <- normalizePath(arguments[1])
way <- arguments[2]
out <- file.path(normalizePath(dirname(arguments[3])), basename(arguments[3]))
downloads <- "get_file|download|https?://[^\"']*[.](csv|zip|tgz|tar)|application_|imdb|reuters"
options(device = function(...) grDevices::pdf(NULL))

# The code blocks that are run, by their line in the file, without those that download.
read_blocks <- function(file) {
  lines <- readLines(file)
  starts <- grep("^```\\{r", lines)
  blocks <- lapply(starts, function(start) {
    end <- start + match(TRUE, startsWith(lines[-seq_len(start)], "```"))
    if (grepl("eval *= *(F|FALSE)\\b", lines[start])) return(character())
    lines[seq_len(end - start - 1) + start]
  })
  names(blocks) <- starts
  Filter(function(block) length(block) > 0 && !any(grepl(downloads, block)), blocks)
}

# In the place of what Keras downloads: images with a bright patch at a place that depends on the
# class, as many as the guide counts on. And each outermost call is kept with its value.
keras_hook <- "
import functools, time
import numpy as np
import keras

records, inside = [], []

def follow(name):
    own = getattr(keras.Model, name)
    @functools.wraps(own)
    def followed(self, *args, **kwargs):
        if inside:
            return own(self, *args, **kwargs)
        inside.append(name)
        began = time.perf_counter()
        try:
            value = own(self, *args, **kwargs)
        finally:
            inside.pop()
        seconds = time.perf_counter() - began
        held = value.history if name == 'fit' else value
        parts = [np.asarray(part, 'float64') for part in keras.tree.flatten(held)]
        # With their places, such as 'loss', and the shapes, so that another structure is seen.
        paths = [path for path, _ in keras.tree.flatten_with_path(held)] if parts else []
        names = [f'{path} {part.shape}' for path, part in zip(paths, parts)]
        layers = [type(layer).__name__ for layer in self._flatten_layers()]
        words = ('Dropout', 'Random', 'Noise', 'Sampl')
        random = any(word in layer for word in words for layer in layers)
        records.append(dict(
            call=name, seconds=seconds, names=names, random=random,
            values=[part.ravel() for part in parts],
        ))
        return value
    setattr(keras.Model, name, followed)

for name in ('fit', 'evaluate', 'predict'):
    follow(name)

def made_up(shape, columns, counts):
    def part(rows):
        y = np.arange(rows) % 10
        x = np.random.default_rng(rows).integers(0, 255, (rows, *shape), 'uint8')
        x[np.arange(rows), y] = 255
        return x, y.astype('uint8').reshape(-1, *columns)
    return lambda *args, **kwargs: tuple(map(part, counts))

keras.datasets.mnist.load_data = made_up((28, 28), (), mnist_rows)
keras.datasets.fashion_mnist.load_data = made_up((28, 28), (), mnist_rows)
keras.datasets.cifar10.load_data = made_up((32, 32, 3), (1,), (1000, 1000))
keras.utils.set_random_seed(1)
"

# The calls that were made since the last time, with what gpukeras says of them.
take_calls <- function(block) {
  if (!keras_is_loaded()) return(list())
  made <- reticulate::py_eval("records[:]")
  reticulate::py_run_string("records.clear()")
  if (way == "keras") return(lapply(made, c, engine = "keras", reason = "", block = block))
  told <- gpukeras::accelerate_report(clear = TRUE)
  told <- told[!grepl("^made within", told$reason), ]
  stopifnot(identical(vapply(made, `[[`, "", "call"), told$call))
  Map(c, made, engine = told$engine, reason = told$reason, block = block)
}

keras_is_loaded <- function() {
  reticulate::py_available() && reticulate::py_eval("'records' in globals()")
}

read_versions <- function() {
  version_of <- function(module) reticulate::import(module)$`__version__`
  gpus <- reticulate::import("tensorflow")$config$list_physical_devices("GPU")
  sprintf(
    "keras3 %s, Keras %s and TensorFlow %s on %s", packageVersion("keras3"), version_of("keras"),
    version_of("tensorflow"), if (length(gpus) > 0) "a GPU" else "a CPU, without a GPU"
  )
}

# As knitr does with `error = TRUE`: the next expression goes on after one that failed. A block may
# need a later R, which R 4.2 cannot parse.
run_block <- function(code, frame) {
  if (keras_is_loaded()) keras3::set_random_seed(1L)
  said <- function(condition) {
    substr(gsub(getwd(), ".", conditionMessage(condition), fixed = TRUE), 1, 150)
  }
  parsed <- tryCatch(parse(text = code), error = said)
  if (is.character(parsed)) return(parsed)
  unlist(lapply(parsed, function(expression) {
    tryCatch(
      {
        utils::capture.output(eval(expression, frame))
        NULL
      },
      error = said
    )
  }))
}

# Guides write files, and some read those of an earlier run.
dir.create(folder <- tempfile("guide"))
setwd(folder)
if (way == "before") gpukeras::accelerate()
library(keras3)
if (way == "after") gpukeras::accelerate()
reticulate::py_register_load_hook("keras", function() {
  counts_on <- any(grepl("\\b[16]0000\\b", readLines(file)))
  rows <- if (counts_on) "60000, 10000" else "1000, 1000"
  reticulate::py_run_string(paste("mnist_rows =", rows))
  reticulate::py_run_string(keras_hook)
})
blocks <- read_blocks(file)
frame <- new.env(parent = globalenv())
frame[["%||%"]] <- rlang::`%||%` # base R has it since 4.4
set.seed(1L)
known <- list(calls = list(), errors = list(), versions = character(), done = FALSE)
for (block in names(blocks)) {
  known$errors[[block]] <- run_block(blocks[[block]], frame)
  known$calls <- c(known$calls, unname(take_calls(block)))
  if (length(known$calls) > 0) known$versions <- read_versions()
  known$done <- block == names(blocks)[length(blocks)]
  saveRDS(known, out, compress = FALSE)
}
