# make site: the pages of pkgdown, built without a network.
#   Rscript tools/site.R [--quick] [FOLDER]
# FOLDER is doc/site by default, and replaced. --quick leaves out what takes minutes: the articles
# and the output of examples.

arguments <- commandArgs(TRUE)
quick <- "--quick" %in% arguments
folder <- c(setdiff(arguments, "--quick"), file.path("doc", "site"))[[1]]

# pkgdown/favicon holds man/figures/logo.svg in six sizes: without it pkgdown asks a web service.
options(pkgdown.internet = FALSE, cli.num_colors = 1L)
# For the link of a package that is not installed, as in `library(keras3)`, downlit asks CRAN.
no_urls <- function() data.frame(Package = character(), URL = character())
utils::assignInNamespace("CRAN_urls", no_urls, "downlit")
# What would not be found is an error here, not a page that is missing.
pkgdown::check_pkgdown()
built <- tempfile("site-")
# Its articles run: what packages show of them was computed before.
live <- tempfile("live-")
dir.create(live)
file.copy(setdiff(list.files(), c("doc", "gpukeras.Rcheck")), live, recursive = TRUE)
sources <- Sys.glob(file.path(live, "vignettes", "*.Rmd.orig"))
file.rename(sources, sub("[.]orig$", "", sources))
pkg <- pkgdown::as_pkgdown(live, override = list(destination = built))
pkgdown::init_site(pkg)
pkgdown::build_home(pkg, preview = FALSE)
pkgdown::build_reference(pkg, examples = !quick, preview = FALSE, lazy = FALSE)
if (quick) pkgdown::build_articles_index(pkg) else pkgdown::build_articles(pkg, preview = FALSE)
pkgdown::build_news(pkg, preview = FALSE)
pkgdown::build_search(pkg)

# Only a whole site takes the place of the last one.
unlink(folder, recursive = TRUE)
dir.create(folder, recursive = TRUE)
invisible(file.copy(list.files(built, full.names = TRUE), folder, recursive = TRUE))
cat("The site is in", file.path(folder, "index.html"), "\n")
