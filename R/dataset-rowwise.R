# Whether a formula's terms are computed from their row alone. One that is not, such as
# x - mean(x), would give other numbers for new rows than for those of training.

rowwise_most <- 1000L # rows on which terms are tried
rowwise_columns <- 4L # columns of a term by which the rows are divided

# Computes each term on rows and on parts of them, and refuses those whose values differ. What they
# have learned is written out already.
check_rowwise <- function(parts, data, call) {
  terms <- Filter(function(term) is.call(term) && !is_rowwise(term, parts$env), terms_of(parts))
  if (length(terms) == 0 || nrow(data) < 2) {
    return(invisible())
  }
  rows <- unique(round(seq(1, nrow(data), length.out = min(nrow(data), rowwise_most))))
  for (term in terms) {
    code <- if (is_learned(term)) term[[3]] else term
    named <- intersect(all.vars(code), names(data))
    if (length(named) > 0) {
      used <- as.data.frame(data[named])[rows, , drop = FALSE]
      check_term_rowwise(term, used, parts$env, call)
    }
  }
}

is_rowwise <- function(term, env) {
  called <- called_in(term)
  known <- intersect(called, rowwise_functions)
  length(known) == length(called) &&
    identical(find_functions(known, env), find_functions(known, baseenv()))
}

check_term_rowwise <- function(term, used, env, call) {
  compute <- function(rows) {
    tryCatch(
      suppressWarnings(take_term(term, used[rows, , drop = FALSE], env, call)),
      gpukeras_error = identity
    )
  }
  whole <- compute(seq_len(nrow(used)))
  if (inherits(whole, "gpukeras_error")) {
    return(invisible()) # said where all rows are computed
  }
  for (rows in divide_rows(used)) {
    found <- compute(rows)
    failed <- inherits(found, "gpukeras_error")
    if (failed || !isTRUE(same_values(pick_rows(whole, rows), found))) {
      abort_gpukeras(
        sprintf(
          "The term `%s` of the formula %s.", name_term(term), if (failed) {
            "cannot be computed for some of the rows alone, as new rows come"
          } else {
            "depends on the other rows, which new rows would change"
          }
        ),
        code = "data", arg = "formula", call = call, parent = if (failed) found,
        hint = paste(
          "Compute that column first, or write out the numbers that it takes from the rows, as in",
          "cut(x, c(0, 1, 2)). Features that are scale(x), poly(x), ns(x) or bs(x) alone learn",
          "theirs from the training rows."
        )
      )
    }
  }
}

# Parts of rows that differ in all that a term may take from them: the lower and the upper half by a
# column, every other row, which has some of the rows that are alike, and the rows without the
# lowest value, where a code of 2 would be 1.
divide_rows <- function(used) {
  parts <- lapply(utils::head(used, c(nrow(used), rowwise_columns)), function(column) {
    column <- if (is.matrix(column)) column[, 1] else column
    listed <- is.list(column)
    sorted <- if (listed) seq_len(nrow(used)) else order(column)
    half <- seq_along(sorted) <= length(sorted) / 2
    odd <- seq_along(sorted) %% 2 == 1
    above <- if (listed) half else !column[sorted] %in% column[sorted[1]]
    lapply(list(half, !half, odd, !odd, above), function(kept) sort(sorted[kept]))
  })
  parts <- unique(unlist(unname(parts), recursive = FALSE))
  parts[lengths(parts) > 0]
}

pick_rows <- function(values, rows) {
  if (length(dim(values)) == 2) values[rows, , drop = FALSE] else values[rows]
}

# Whether values are the same; a factor's levels may be fewer in a part.
same_values <- function(one, other) {
  plain <- function(values) {
    values <- if (is.factor(values)) as.character(values) else unclass(values)
    if (is.list(values)) lapply(values, as.vector) else as.vector(values)
  }
  all.equal(plain(one), plain(other), tolerance = 1e-7, check.attributes = FALSE)
}
