# Runs the guides and examples of keras3 as they are, by Keras and under accelerate(), and compares
# the losses and times of each fit():
#   Rscript python/benchmarks/bench_accelerate.R FOLDER [--only REGEX] [--json PATH]
# FOLDER is an unpacked tree of keras3's sources; its code is read there and copied nowhere. Code
# blocks that download are left out, and so is what needs them; dataset_mnist() and its like are
# made up, as many rows of the same shape. Each guide has a process of its own, once by Keras and
# once under accelerate(). Each code block starts with the same random seed.

here <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)) |>
  normalizePath() |>
  dirname()
most_s <- 900 # of a guide
same <- 1e-4 # of losses, relative: other programs round otherwise in float32
similar <- 0.5 # of the last loss, where random numbers of layers differ

option_of <- function(arguments, name, default) {
  at <- match(name, arguments)
  if (is.na(at)) default else arguments[at + 1]
}

list_guides <- function(folder, only) {
  files <- list.files(
    file.path(folder, "vignettes-src"), "[.]Rmd$", recursive = TRUE, full.names = TRUE
  )
  files <- files[!grepl("parked|index", files) & grepl(only, basename(files))]
  Filter(function(file) any(grepl("fit(", readLines(file), fixed = TRUE)), files)
}

# One process; a list of its fits, or none where it failed.
run_guide <- function(file, way) {
  out <- tempfile(fileext = ".json")
  on.exit(unlink(out))
  child <- c(file.path(here, "accelerate_guide.R"), file, way, out)
  began <- proc.time()[["elapsed"]]
  status <- system2("timeout", c(most_s, file.path(R.home("bin"), "Rscript"), shQuote(child)),
    stdout = FALSE, stderr = FALSE
  )
  took <- proc.time()[["elapsed"]] - began
  if (!file.exists(out)) {
    message(sprintf("  %s: status %d, nothing said", way, status))
    return(list(seconds = took, fits = list()))
  }
  c(list(seconds = took), jsonlite::read_json(out, simplifyVector = FALSE))
}

# The largest relative difference of two histories, and that of the last loss.
differ <- function(one, other) {
  if (!setequal(names(one), names(other))) return(c(all = Inf, last = Inf))
  gap <- function(name) {
    a <- as.numeric(unlist(one[[name]]))
    b <- as.numeric(unlist(other[[name]]))
    if (length(a) != length(b)) return(Inf)
    apart <- abs(a - b) / pmax(1e-3, abs(a))
    apart[is.nan(a) & is.nan(b)] <- 0
    max(apart, 0)
  }
  last <- function(history) utils::tail(as.numeric(unlist(history[["loss"]])), 1)
  ends <- abs(last(one) - last(other)) / max(1e-3, abs(last(one)))
  c(all = max(vapply(names(one), gap, 0)), last = if (length(ends) > 0) ends else Inf)
}

compare_guide <- function(file) {
  name <- sub("[.]Rmd$", "", basename(file))
  message(name)
  plain <- run_guide(file, "keras")
  ours <- run_guide(file, "accelerate")
  count <- min(length(plain$fits), length(ours$fits))
  one <- function(index) {
    a <- plain$fits[[index]]
    b <- ours$fits[[index]]
    gaps <- differ(a$history, b$history)
    verdict <- if (gaps[["last"]] <= similar) "similar" else "differs"
    verdict <- if (gaps[["all"]] <= same) "same" else verdict
    data.frame(
      guide = name, block = a$block, fit = index, engine = b$engine, verdict = verdict,
      gap = signif(gaps[["all"]], 2), keras_s = round(a$seconds, 2), ours_s = round(b$seconds, 2),
      dropout = a$random, reason = b$reason
    )
  }
  if (length(plain$fits) != length(ours$fits)) {
    message(sprintf("  %d fits and %d", length(plain$fits), length(ours$fits)))
  }
  do.call(rbind, lapply(seq_len(count), one))
}

arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]
files <- list_guides(folder, option_of(arguments, "--only", "."))
found <- do.call(rbind, lapply(files, compare_guide))
options(width = 200)
print(found[names(found) != "reason"], row.names = FALSE)
print(as.data.frame(table(engine = found$engine, verdict = found$verdict)), row.names = FALSE)
print(sort(table(found$reason[found$engine == "keras"]), decreasing = TRUE))
taken <- found[found$engine == "gpukeras", ]
cat(sprintf(
  "%d of %d fit() calls taken over, %d with the same losses; %.2f times as fast, at most %.1f\n",
  nrow(taken), nrow(found), sum(taken$verdict == "same"), sum(taken$keras_s) / sum(taken$ours_s),
  max(taken$keras_s / taken$ours_s, -Inf)
))
path <- option_of(arguments, "--json", "")
if (nzchar(path)) jsonlite::write_json(found, path, digits = NA, pretty = TRUE)
