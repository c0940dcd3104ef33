# One table of what is promised: the figure, what it is compared with, the promise beside the ratio.

records <- new.env()
sys.source("records.R", records)
plan <- new.env()
sys.source("plan.R", plan)

print_promises <- function(runs, quick) {
  cases <- plan$measured$cases
  rows <- c(
    lapply(names(cases), function(case) case_rows(runs, case, cases[[case]])),
    list(predict_rows(runs), start_rows(runs), fits_rows(runs))
  )
  rows <- do.call(rbind, unlist(rows, recursive = FALSE))
  if (!is.null(rows)) {
    if (quick) rows$verdict <- ""
    cat("\n| what | gpukeras | compared with | ratio | promised | |\n|---|---|---|---|---|---|\n")
    cat(sprintf("| %s |\n", do.call(paste, c(rows, sep = " | "))), sep = "")
  }
  for (run in Filter(function(run) !is.null(run$error), runs)) {
    cat(sprintf("\nFAILED: %s/%s, %s: %s\n", run$case, run$method, run$measure, run$error))
  }
}

# A line, or NULL where something was not measured. The ratio is how many times faster gpukeras is;
# with `most` it is gpukeras' figure as a multiple of the other.
compare <- function(what, ours, other, name, promise = NULL, most = FALSE, digits = 3) {
  if (is.na(ours) || is.na(other)) {
    return(NULL)
  }
  seconds <- function(x) paste(records$number(x, digits), "s")
  ratio <- if (most) ours / other else other / ours
  other <- paste0(seconds(other), ", ", name)
  add_line(what, seconds(ours), other, ratio, promise, most)
}

add_line <- function(what, ours, other, ratio, promise = NULL, most = TRUE, unit = "") {
  promised <- sprintf("at %s %g%s", if (most) "most" else "least", promise, unit)
  kept <- if (most) ratio <= promise else ratio >= promise
  data.frame(
    what = what, ours = ours, other = other, ratio = paste0(records$number(ratio), unit),
    promised = c(promised, "")[1], verdict = c(ifelse(kept, "kept", "BROKEN"), "")[1]
  )
}

# Training ----------------------------------------------------------------------------------------

case_rows <- function(runs, case, size) {
  base <- plan$choose_base()
  named <- plan$ours$methods[[base]]$label
  Filter(Negate(is.null), c(
    list(warm_row(runs, case, size, base, named), total_row(runs, case, size, base, named)),
    lapply(c("parquet", "generator"), streamed_row, runs, case, size, base, named),
    lapply(c("parquet", "generator"), against_array, runs, case, size),
    list(
      against_generator(runs, case, size), limit_row(runs, case, size), best_row(runs, case, size),
      compile_row(runs, case, size), memory_row(runs, case, size)
    )
  ))
}

warm_row <- function(runs, case, size, base, named) {
  compare(
    paste0(size$label, ": warm epoch"), records$warm_s(runs, case, "auto"),
    records$warm_s(runs, case, base), named, size$promises$warm
  )
}

total_row <- function(runs, case, size, base, named) {
  epochs <- max(0, unlist(lapply(records$pick(runs, case, "auto", "time"), `[[`, "epochs")))
  compare(
    sprintf("%s: %d epochs in all", size$label, epochs),
    records$total_s(runs, case, "auto", epochs), records$total_s(runs, case, base, epochs), named,
    size$promises$total,
    digits = 1
  )
}

streamed_row <- function(way, runs, case, size, base, named) {
  compare(
    sprintf("%s, %s: warm epoch", size$label, source_name(way)), records$warm_s(runs, case, way),
    records$warm_s(runs, case, base), paste(named, "on the matrix"), size$promises$warm
  )
}

against_array <- function(way, runs, case, size) {
  compare(
    sprintf("%s, %s: warm epoch", size$label, source_name(way)), records$warm_s(runs, case, way),
    records$warm_s(runs, case, "auto"), "gpukeras on the matrix",
    most = TRUE
  )
}

against_generator <- function(runs, case, size) {
  compare(
    sprintf("%s, %s: warm epoch", size$label, source_name("generator")),
    records$warm_s(runs, case, "generator"), records$warm_s(runs, case, "keras_generator"),
    plan$ours$methods$keras_generator$label
  )
}

source_name <- function(way) c(parquet = "Parquet", generator = "R generator cached")[[way]]

limit_row <- function(runs, case, size) {
  compare(
    paste0(size$label, ": warm epoch"), records$warm_s(runs, case, "auto"),
    records$warm_s(runs, case, "limit"), "bare XLA loop", size$promises$limit,
    most = TRUE
  )
}

best_row <- function(runs, case, size) {
  best <- records$best_engine(runs, case)
  compare(
    paste0(size$label, ": warm epoch, engine chosen"), records$warm_s(runs, case, "auto"), best,
    sub("engine_", "best engine: ", names(best)), size$promises$best,
    most = TRUE
  )
}

compile_row <- function(runs, case, size) {
  epochs <- max(0, unlist(lapply(records$pick(runs, case, "auto", "time"), `[[`, "epochs")))
  compare(
    sprintf("%s: %d epochs in all, compiling hidden", size$label, epochs),
    records$total_s(runs, case, "auto", epochs), records$total_s(runs, case, "in_front", epochs),
    "compiling in front",
    digits = 1
  )
}

memory_row <- function(runs, case, size) {
  found <- records$memory_share(runs, case, "auto")
  other <- records$memory_share(runs, case, plan$choose_base())
  if (!is.na(found)) {
    add_line(
      paste0(size$label, ": memory beyond the R array"), paste(records$number(found), "of it"),
      paste0(records$number(other), ", ", plan$ours$methods[[plan$choose_base()]]$label),
      found, size$promises$memory
    )
  }
}

# Others ------------------------------------------------------------------------------------------

predict_rows <- function(runs) {
  run <- records$pick(runs, "predict", measure = "predict")
  found <- if (length(run) > 0) unlist(run[[1]]$predict_s)
  if (is.null(found)) {
    return(NULL)
  }
  size <- plan$measured$others$predict
  sized <- sort(found[setdiff(names(found), c("gpukeras", "default"))])[1]
  named <- c(
    sprintf("model$predict() at its default, from %g of the rows", size$default_share),
    sprintf("model$predict(batch_size = %s), its best", names(sized))
  )
  list(
    compare(size$label, found[["gpukeras"]], found[["default"]], named[1], size$promises$default),
    compare(size$label, found[["gpukeras"]], sized, named[2], size$promises$best)
  )
}

start_rows <- function(runs) {
  size <- plan$measured$others$start
  lapply(c(first = "first_s", later = "later_s"), function(field) {
    found <- lapply(c(auto = "auto", base = plan$choose_base()), function(name) {
      records$middle(records$pick(runs, "start", name), function(run) run[[field]])
    })
    if (anyNA(found)) {
      return(NULL)
    }
    when <- if (field == "first_s") "the session's first fit" else "a later fit"
    add_line(
      sprintf("%s: to the first step, %s", size$label, when),
      paste(records$number(found$auto), "s"),
      paste0(records$number(found$base), " s, ", plan$ours$methods[[plan$choose_base()]]$label),
      found$auto - found$base, size$promises$extra_s,
      unit = " s more"
    )
  })
}

# The first ten fits bring in what stays.
fits_rows <- function(runs) {
  runs <- Filter(function(run) !is.null(run$mib), records$pick(runs, "fits"))
  lapply(runs, function(run) {
    mib <- unlist(run$mib)
    fits <- as.numeric(names(mib))
    last <- length(mib)
    growth <- (mib[[last]] - mib[[1]]) / (fits[last] - fits[1])
    label <- plan$measured$others$fits$label
    row <- add_line(
      sprintf("%g %s, %s", run$fits, label, fits_models[[run$method]]),
      sprintf("%.0f MiB after %g", mib[[last]], fits[last]),
      sprintf("%.0f MiB after %g", mib[[1]], fits[1]),
      growth,
      unit = " MiB a fit"
    )
    row$promised <- "none beyond noise"
    row
  })
}

fits_models <- c(one = "one model", new = "a new model each")
