# One table of what is promised: the figure, what it is compared with, the promise beside the ratio.

records <- new.env()
sys.source("records.R", records)
plan <- new.env()
sys.source("plan.R", plan)
busy <- new.env()
sys.source("load.R", busy)

# `refused`: why nothing may be judged, or "".
print_promises <- function(runs, quick, refused) {
  cases <- plan$measured$cases
  rows <- c(
    lapply(names(cases), function(case) {
      judge(case_rows(runs, case, cases[[case]]), records$pick(runs, case), refused)
    }),
    list(
      judge(predict_rows(runs), records$pick(runs, "predict"), refused),
      judge(start_rows(runs), records$pick(runs, "start"), refused),
      judge(fits_rows(runs), records$pick(runs, "fits"), refused)
    )
  )
  rows <- do.call(rbind, unlist(rows, recursive = FALSE))
  if (nzchar(refused)) cat(sprintf("\nNo promise is judged: %s.\n", refused))
  if (!is.null(rows)) {
    if (quick) rows$verdict <- ""
    cat("\n| what | gpukeras | compared with | ratio | promised | |\n|---|---|---|---|---|---|\n")
    cat(sprintf("| %s |\n", do.call(paste, c(rows, sep = " | "))), sep = "")
  }
  for (run in Filter(function(run) !is.null(run$error), runs)) {
    cat(sprintf("\nFAILED: %s/%s, %s: %s\n", run$case, run$method, run$measure, run$error))
  }
}

# The rows with what the load during their runs leaves of the verdicts.
judge <- function(rows, runs, refused) {
  reason <- busy$refuse(runs)
  lapply(Filter(Negate(is.null), rows), function(row) {
    if (row$verdict %in% c("kept", "BROKEN")) {
      if (nzchar(refused)) row$verdict <- ""
      if (!nzchar(refused) && nzchar(reason)) row$verdict <- paste("not judged:", reason)
    }
    row
  })
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

# Keras as an expert calls it first, then the limits, then Keras' default.
case_rows <- function(runs, case, size) {
  Filter(Negate(is.null), c(
    list(
      versus(runs, case, size, "auto", "steps", size$promises$steps),
      versus(runs, case, size, "auto", "jax_steps", size$promises$jax),
      versus(runs, case, size, "jax_auto", "jax_steps")
    ),
    total_rows(runs, case, size),
    list(
      versus(runs, case, size, "auto", "limit", size$promises$limit, most = TRUE),
      versus(runs, case, size, "jax_auto", "jax_limit", size$promises$limit, most = TRUE),
      never_slower(runs, case, size, "auto", c(plan$choose_base(), "steps")),
      never_slower(runs, case, size, "jax_auto", c("jax_keras", "jax_steps")),
      memory_row(runs, case, size, "auto", plan$choose_base()),
      memory_row(runs, case, size, "jax_auto", "jax_keras"),
      versus(runs, case, size, "auto", plan$choose_base()),
      versus(runs, case, size, "auto", "jax_keras")
    ),
    lapply(c("parquet", "generator"), streamed_row, runs, case, size),
    lapply(c("parquet", "generator"), against_array, runs, case, size),
    list(
      against_generator(runs, case, size), best_row(runs, case, size), compile_row(runs, case, size)
    )
  ))
}

name_method <- function(runs, case, name) {
  steps <- records$best_steps(runs, case, name)
  paste0(plan$ours$methods[[name]]$label, if (nzchar(steps)) paste0(": ", steps))
}

what_of <- function(size, name, what) {
  sprintf("%s%s: %s", size$label, if (name == "jax_auto") ", on JAX" else "", what)
}

# A warm epoch of one method and of another.
versus <- function(runs, case, size, ours, other, promise = NULL, most = FALSE) {
  compare(
    what_of(size, ours, "warm epoch"), records$warm_s(runs, case, ours),
    records$warm_s(runs, case, other), name_method(runs, case, other), promise, most
  )
}

# Only where it is promised: as a multiple of the faster way to call Keras.
never_slower <- function(runs, case, size, ours, others) {
  if (is.null(size$promises$same)) {
    return(NULL)
  }
  found <- records$fastest(runs, case, others)
  named <- if (is.na(found)) "" else name_method(runs, case, names(found))
  compare(
    what_of(size, ours, "warm epoch"), records$warm_s(runs, case, ours), found[[1]],
    paste("the faster,", named), size$promises$same,
    most = TRUE
  )
}

# A later session finds on disk what the first one compiles: that is what is promised.
total_rows <- function(runs, case, size) {
  epochs <- max(0, unlist(lapply(records$pick(runs, case, "auto", "time"), `[[`, "epochs")))
  row <- function(ours, other, first, promise = NULL) {
    compare(
      what_of(size, ours, sprintf(
        "%d epochs in all, %s session", epochs, if (first) "the first" else "a later"
      )),
      records$total_s(runs, case, ours, epochs, first), records$total_s(runs, case, other, epochs),
      name_method(runs, case, other), promise,
      digits = 1
    )
  }
  list(
    row("auto", "steps", FALSE, size$promises$total), row("auto", "steps", TRUE),
    row("auto", plan$choose_base(), FALSE), row("jax_auto", "jax_steps", FALSE),
    row("jax_auto", "jax_steps", TRUE)
  )
}

streamed_row <- function(way, runs, case, size) {
  compare(
    sprintf("%s, %s: warm epoch", size$label, source_name(way)), records$warm_s(runs, case, way),
    records$warm_s(runs, case, "steps"),
    paste(name_method(runs, case, "steps"), "on the matrix")
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

memory_row <- function(runs, case, size, ours, other) {
  found <- records$memory_share(runs, case, ours)
  against <- records$memory_share(runs, case, other)
  if (!is.na(found)) {
    add_line(
      what_of(size, ours, "memory beyond the R array"), paste(records$number(found), "of it"),
      paste0(records$number(against), ", ", plan$ours$methods[[other]]$label),
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
