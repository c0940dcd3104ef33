# make vignettes: computes vignettes/NAME.Rmd, which runs nothing, from the text and the code of
# NAME.Rmd.orig.
#   Rscript tools/precompute.R [NAME ...]
# Without names it takes those whose pages are older than their sources. A page's first comment has
# the checksums of its source and of itself; python/tests/project/test_vignettes.py compares them.

library(gpukeras)

# Outputs show paths, and nobody needs to know those of this computer. .venv may be a link.
shown_paths <- function() {
  ours <- unique(c(getwd(), dirname(normalizePath(".venv"))))
  stats::setNames(rep("~/gpukeras", length(ours)), ours)
}

# What the outputs came from, as their readers want to know.
describe_computer <- function() {
  version <- function(module) reticulate::import(module)$`__version__`
  cores <- tryCatch(readLines("/proc/cpuinfo"), error = function(condition) character())
  model <- c(sub(".*: *", "", grep("^model name", cores, value = TRUE)), R.version$arch)[[1]]
  sprintf(
    paste(
      "The outputs were computed on %s, on %d cores of %s, by R %s, Python %s, TensorFlow %s and",
      "Keras %s."
    ),
    format(Sys.Date()), parallel::detectCores(), model, getRversion(),
    reticulate::py_config()$version, version("tensorflow"), version("keras")
  )
}

# Where a page has its mark: below the header of YAML.
find_mark <- function(lines) which(lines == "---")[[2]] + 1

mark_of <- function(name, source, page) {
  sprintf(
    "<!-- Computed by make vignettes from %s.Rmd.orig: edit that file. source %s, page %s -->",
    name, md5(source), md5(page)
  )
}

md5 <- function(lines) {
  file <- tempfile()
  on.exit(unlink(file))
  write_text(lines, file)
  unname(tools::md5sum(file))
}

# LF ends lines on Windows too.
write_text <- function(lines, file) {
  writeBin(charToRaw(enc2utf8(paste0(lines, "\n", collapse = ""))), file)
}

read_text <- function(...) readLines(file.path(...), encoding = "UTF-8")

is_current <- function(name) {
  page <- file.path("vignettes", paste0(name, ".Rmd"))
  if (!file.exists(page)) {
    return(FALSE)
  }
  lines <- read_text(page)
  at <- find_mark(lines)
  source <- read_text("vignettes", paste0(name, ".Rmd.orig"))
  identical(lines[[at]], mark_of(name, source, lines[-at]))
}

# Runs in a process of its own, in a folder that has the source as NAME.Rmd. The name of R's
# temporary folder differs each time.
knit_page <- function(name, paths) {
  options(width = 80, cli.num_colors = 1L)
  knitr::opts_chunk$set(error = FALSE, dpi = 96, fig.path = sprintf("figures/%s-", name))
  knitr::knit(paste0(name, ".Rmd"), "page.md", quiet = TRUE)
  page <- readLines("page.md", encoding = "UTF-8")
  paths[[tempdir()]] <- "/tmp/Rtmp"
  for (path in names(paths)) page <- gsub(path, paths[[path]], page, fixed = TRUE)
  page
}

compute <- function(name, computer) {
  started <- proc.time()[[3]]
  folder <- tempfile("vignette-")
  dir.create(folder)
  source <- read_text("vignettes", paste0(name, ".Rmd.orig"))
  write_text(source, file.path(folder, paste0(name, ".Rmd")))
  page <- callr::r(
    knit_page, list(name, shown_paths()),
    wd = folder, show = FALSE, spinner = FALSE
  )
  page <- c(page, "", "---", "", computer)
  private <- Filter(function(text) any(grepl(text, page, fixed = TRUE)), c(
    path.expand("~"), Sys.info()[["nodename"]]
  ))
  if (length(private) > 0) stop(name, " shows ", toString(private))
  write_page(name, append(page, mark_of(name, source, page), find_mark(page) - 1), folder)
  cat(sprintf("%-24s %6.1f s\n", name, proc.time()[[3]] - started))
}

write_page <- function(name, page, folder) {
  figures <- file.path("vignettes", "figures")
  dir.create(figures, showWarnings = FALSE)
  unlink(Sys.glob(file.path(figures, paste0(name, "-unnamed-chunk-*"))))
  file.copy(Sys.glob(file.path(folder, "figures", "*")), figures)
  file <- file.path("vignettes", paste0(name, ".Rmd"))
  write_text(page, paste0(file, ".new"))
  invisible(file.rename(paste0(file, ".new"), file))
}

names <- commandArgs(TRUE)
if (length(names) == 0) {
  names <- sub("[.]Rmd[.]orig$", "", basename(Sys.glob("vignettes/*.Rmd.orig")))
  names <- Filter(Negate(is_current), names)
}
if (length(names) > 0) {
  computer <- describe_computer()
  for (name in names) compute(name, computer)
}
