# Builds the vignettes, one session each, and tells their times. Their code runs: what packages show
# was computed by tools/precompute.R.
#   Rscript tools/vignettes.R [FOLDER] [VIGNETTE ...]
# FOLDER is doc by default. What fails to build fails this.

arguments <- c(commandArgs(TRUE), if (length(commandArgs(TRUE)) == 0) "doc")
folder <- normalizePath(arguments[[1]], mustWork = FALSE)
names <- sub("[.]Rmd[.]orig$", "", basename(Sys.glob("vignettes/*.Rmd.orig")))
if (length(arguments) > 1) names <- arguments[-1]

build <- function(name) {
  started <- proc.time()
  source <- file.path(tempdir(), paste0(name, ".Rmd"))
  file.copy(file.path("vignettes", paste0(name, ".Rmd.orig")), source, overwrite = TRUE)
  callr::r(
    function(file, folder) rmarkdown::render(file, output_dir = folder, quiet = TRUE),
    list(source, folder),
    show = FALSE, spinner = FALSE
  )
  cat(sprintf("%-24s %6.1f s\n", name, (proc.time() - started)[[3]]))
}

for (name in names) build(name)
