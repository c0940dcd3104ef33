# Builds the vignettes, one session each, and tells their times.
#   Rscript tools/vignettes.R [FOLDER] [VIGNETTE ...]
# FOLDER is doc by default. What fails to build fails this.

arguments <- c(commandArgs(TRUE), if (length(commandArgs(TRUE)) == 0) "doc")
folder <- arguments[[1]]
names <- sub("[.]Rmd$", "", basename(Sys.glob("vignettes/*.Rmd")))
if (length(arguments) > 1) names <- arguments[-1]

build <- function(name) {
  started <- proc.time()
  callr::r(
    function(file, folder) {
      rmarkdown::render(file, output_dir = folder, intermediates_dir = tempfile(), quiet = TRUE)
    },
    list(file.path("vignettes", paste0(name, ".Rmd")), folder),
    show = FALSE, spinner = FALSE
  )
  cat(sprintf("%-24s %6.1f s\n", name, (proc.time() - started)[[3]]))
}

for (name in names) build(name)
