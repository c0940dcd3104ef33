# Runs the examples of all help pages in one session, as R CMD check does, and tells their times.
#   Rscript tools/examples.R [PAGE ...]
# An error or a warning in one fails, as does one that leaves a file in the working directory.

# Else R may ask systemd for it, and warn where there is none.
if (!nzchar(Sys.getenv("TZ"))) Sys.setenv(TZ = "UTC")
library(gpukeras)
pages <- tools::Rd_db(dir = ".")
wanted <- commandArgs(TRUE)
if (length(wanted) > 0) pages <- pages[sub("[.]Rd$", "", names(pages)) %in% wanted]
folder <- tempfile("examples-")
dir.create(folder)
setwd(folder)

run_page <- function(name) {
  script <- file.path(tempdir(), paste0(name, ".R"))
  tools::Rd2ex(pages[[name]], script)
  if (!file.exists(script)) {
    return(NULL)
  }
  started <- proc.time()
  said <- NULL
  withCallingHandlers(
    tryCatch(
      utils::capture.output(source(script, local = new.env(), print.eval = TRUE)),
      error = function(condition) said <<- c(said, paste("error:", conditionMessage(condition)))
    ),
    warning = function(condition) {
      said <<- c(said, paste("warning:", conditionMessage(condition)))
      invokeRestart("muffleWarning")
    },
    message = function(condition) invokeRestart("muffleMessage")
  )
  if (length(dir()) > 0) said <- c(said, paste("left files:", toString(dir())))
  unlink(dir(), recursive = TRUE)
  spent <- proc.time() - started
  cat(sprintf("%-24s %5.1f s of processor, %5.1f s\n", name, sum(spent[1:2]), spent[[3]]))
  if (length(said) > 0) cat(paste0("  ", said, "\n"), sep = "")
  said
}

grDevices::pdf(NULL)
faults <- unlist(lapply(sort(names(pages)), run_page))
quit(status = length(faults) > 0)
