# Runs the guides and examples of keras3 as they are, by Keras and under accelerate(), which is
# called before and after library(keras3). Compares what each fit(), evaluate() and predict()
# returned, and writes the tables of vignettes/old-scripts.Rmd.orig:
#   Rscript python/benchmarks/bench_accelerate.R FOLDER [--only REGEX] [--ways before,after]
#     [--results FOLDER]
# FOLDER is an unpacked tree of keras3's sources; its code is read there and copied nowhere. R needs
# keras3, tensorflow and tfdatasets. Each guide has a process of its own for each of the three ways,
# and each code block starts with the same random seed. Code blocks that download are left out, and
# so is what needs them; dataset_mnist() and its like are made up, see accelerate_guide.R. With
# --only the vignette is not written; --results keeps what was found, and goes on from it.

here <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)) |>
  normalizePath() |>
  dirname()
vignette <- file.path(here, "..", "..", "vignettes", "old-scripts.Rmd.orig")
marks <- sprintf("<!-- %s of what `make bench-accelerate` writes -->", c("begin", "end"))
most_s <- 3600 # of a process
same <- 1e-4 # relative: other programs round otherwise in float32

option_of <- function(arguments, name, default) {
  at <- match(name, arguments)
  if (is.na(at)) default else arguments[at + 1]
}

list_guides <- function(folder, only) {
  files <- list.files(
    file.path(folder, "vignettes-src"), "[.]Rmd$",
    recursive = TRUE, full.names = TRUE
  )
  files <- files[!grepl("parked|index", files) & grepl(only, basename(files))]
  calls <- "(^|>|%|<-) *(fit|evaluate|predict)[(]" # not those of its prose
  Filter(function(file) any(grepl(calls, readLines(file))), files)
}

# One process, which may be stopped after some blocks; what it found, or an empty list where it
# failed before the first of them ended.
run_guide <- function(file, way, results) {
  out <- file.path(results, paste0(name_of(file), "-", way, ".rds"))
  if (file.exists(out)) return(readRDS(out))
  said <- tempfile()
  on.exit(unlink(said))
  child <- c(file.path(here, "accelerate_guide.R"), file, way, out)
  status <- system2(
    "timeout", c(most_s, file.path(R.home("bin"), "Rscript"), shQuote(child)),
    stdout = FALSE, stderr = said
  )
  if (status != 0) {
    message(sprintf("  %s: status %d", way, status))
    message(paste0("  | ", utils::tail(readLines(said, warn = FALSE), 15), collapse = "\n"))
  }
  if (file.exists(out)) readRDS(out) else list()
}

name_of <- function(file) sub("[.]Rmd$", "", basename(file))

# What a call is, so that the same calls of two processes meet: the line of its block, its function,
# and the how many-th call of that function in the block.
name_calls <- function(calls) {
  names <- vapply(calls, function(call) paste0(call$block, " ", call$call, "()"), "")
  nth <- stats::ave(seq_along(names), names, FUN = seq_along)
  stats::setNames(calls, paste(names, nth))
}

# The largest relative difference. Losses are compared one by one, predictions with the largest.
differ <- function(one, other) {
  if (!identical(unlist(one$names), unlist(other$names))) return(Inf)
  gap <- function(a, b) {
    scale <- pmax(1e-3, if (one$call == "predict") max(abs(a), 0, na.rm = TRUE) else abs(a))
    apart <- abs(a - b) / scale
    apart[is.nan(a) & is.nan(b) | a == b] <- 0
    max(apart, 0)
  }
  max(mapply(gap, lapply(one$values, as.numeric), lapply(other$values, as.numeric)), 0)
}

compare_guide <- function(file, results) {
  message(format(Sys.time(), "%H:%M "), name_of(file))
  plain <- run_guide(file, "keras", results)
  if (length(plain$calls) == 0) return(NULL)
  ours <- lapply(stats::setNames(nm = ways), function(way) run_guide(file, way, results))
  for (way in ways) {
    if (!identical(ours[[way]]$errors, plain$errors)) message("  ", way, ": other errors")
  }
  calls <- lapply(c(keras = list(plain), ours), function(one) name_calls(one$calls))
  rows <- lapply(names(calls$keras), function(call) compare_call(call, calls))
  name <- paste0("`", name_of(file), "`", if (!isTRUE(plain$done)) " (stopped)")
  cbind(guide = name, do.call(rbind, rows), versions = plain$versions)
}

# A row; a call that is missing under accelerate() differs by Inf.
compare_call <- function(name, calls) {
  plain <- calls$keras[[name]]
  ours <- lapply(calls[ways], `[[`, name)
  gaps <- vapply(ours, function(one) if (is.null(one)) Inf else differ(plain, one), 0)
  of <- function(field) unique(unlist(lapply(ours, `[[`, field)))
  data.frame(
    call = name, engine = paste(of("engine"), collapse = " or "), gap = max(gaps),
    keras_s = plain$seconds, ours_s = mean(vapply(ours, function(one) one$seconds %||% NA, 0)),
    random = plain$random, reason = paste(of("reason"), collapse = " or ")
  )
}

`%||%` <- function(a, b) if (is.null(a)) b else a

table_of <- function(frame, align) {
  rows <- c(paste(names(frame), collapse = " | "), do.call(paste, c(unname(frame), sep = " | ")))
  append(paste("|", rows, "|"), paste0("|", paste(align, collapse = "|"), "|"), after = 1)
}

table_guides <- function(found) {
  rows <- lapply(split(found, factor(found$guide, unique(found$guide))), function(part) {
    data.frame(
      guide = part$guide[1], calls = nrow(part), `taken over` = sum(part$engine == "gpukeras"),
      equal = sum(part$gap <= same), `largest difference` = sprintf("%.0e", max(part$gap)),
      check.names = FALSE
    )
  })
  table_of(do.call(rbind, rows), c("---", rep("--:", 4)))
}

table_reasons <- function(found) {
  left <- found[found$engine != "gpukeras", ]
  reasons <- gsub(" [(][0-9,]+[)]", "", left$reason)
  rows <- lapply(split(left, reasons), function(part) {
    data.frame(calls = nrow(part), guides = length(unique(part$guide)))
  })
  frame <- cbind(`why Keras ran it` = names(rows), do.call(rbind, rows))
  table_of(frame[order(-frame$calls), ], c("---", "--:", "--:"))
}

sum_up <- function(found) {
  taken <- sum(found$engine == "gpukeras")
  guides <- length(unique(found$guide))
  sprintf(
    paste(
      "Of %d calls in %d guides and examples, %d went through gpukeras, and %d returned the same",
      "values. %s, with %s, `accelerate()` %s `library(keras3)`; %d cores, with other programs."
    ),
    nrow(found), guides, taken, sum(found$gap <= same), Sys.Date(), found$versions[1],
    paste(ways, collapse = " and "), parallel::detectCores()
  )
}

write_between <- function(file, text) {
  lines <- readLines(file)
  at <- match(marks, lines)
  stopifnot(!anyNA(at))
  writeLines(c(lines[seq_len(at[1])], "", text, "", lines[at[2]:length(lines)]), file)
}

arguments <- commandArgs(trailingOnly = TRUE)
only <- option_of(arguments, "--only", ".")
# Where accelerate() stands, seen from library(keras3).
ways <- strsplit(option_of(arguments, "--ways", "before,after"), ",")[[1]]
results <- option_of(arguments, "--results", tempfile("results"))
dir.create(results, showWarnings = FALSE, recursive = TRUE)
files <- list_guides(arguments[1], only)
found <- do.call(rbind, lapply(files, compare_guide, results))
options(width = 200)
print(found[names(found) != "versions"], row.names = FALSE, digits = 3)
text <- c(strwrap(sum_up(found), 110), "", table_guides(found), "", table_reasons(found))
writeLines(text)
if (only == ".") write_between(vignette, text)
