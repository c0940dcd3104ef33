# Learning-rate schedules: the argument `schedule` of gpu_fit(). The core checks and evaluates them.

#' Learning-rate schedules
#'
#' Values for the argument `schedule` of [gpu_fit()]: the learning rate of every step of a training.
#' The step itself looks the rate up, so a schedule costs nothing. If you give no highest rate, it
#' is the rate that the optimizer was compiled with. The optimizer has that rate again after the
#' training.
#'
#' * `schedule_one_cycle()` raises the rate once and lowers it once (Smith 2018), with the phases
#'   and the defaults of PyTorch's `OneCycleLR`. The momentum stays the same.
#' * `schedule_cyclic()` raises and lowers the rate repeatedly (Smith 2017). At step \eqn{i}, with
#'   half cycles of \eqn{h} steps, \eqn{c = \lfloor 1 + i / 2h \rfloor} and
#'   \eqn{x = |i / h - 2c + 1|}, the rate is `min_rate + (max_rate - min_rate) * max(0, 1 - x)`. The
#'   policy `"triangular2"` multiplies the height by \eqn{1 / 2^{c - 1}}, `"exp_range"` by
#'   `gamma`^i.
#' * `schedule_warmup_cosine()` warms up and then lowers the rate along half a cosine, optionally
#'   with restarts (Loshchilov & Hutter 2017):
#'   `min_rate + (max_rate - min_rate) * (1 + cos(pi * i / n)) / 2` at step \eqn{i} of \eqn{n}.
#' * `schedule_exponential()` multiplies the rate by `decay` every `every` epochs.
#' * `schedule_plateau()` multiplies the rate by `factor` when a metric stops improving.
#' * `schedule_constant()` keeps one rate, after a warm-up.
#'
#' Every schedule may begin with a warm-up, in which the rate rises linearly to the schedule's first
#' rate (Goyal et al. 2017). The warm-up counts as part of the schedule's duration.
#'
#' @param max_rate The highest rate; `NULL` is the optimizer's own.
#' @param pct_start Share of the steps in which the rate rises.
#' @param div_factor The first rate is the highest rate divided by this number.
#' @param final_div The last rate is the first rate divided by this number.
#' @param anneal Shape of the rise and the fall: `"cos"` or `"linear"`.
#' @param warmup Epochs of warm-up, possibly fractional; 0 is none.
#' @param warmup_from Where the warm-up starts, as a share of the schedule's first rate.
#' @return A `gpu_schedule`: a list of its `kind` and its options, with `print()` and `plot()`.
#' @section Errors:
#' `gpukeras_error_spec` for an invalid option. [gpu_fit()] checks what depends on the training: a
#' warm-up longer than the training, or a `min_rate` above the optimizer's own rate.
#' @references
#' Smith (2017), Cyclical Learning Rates for Training Neural Networks,
#' <https://arxiv.org/abs/1506.01186>.
#'
#' Smith (2018), A disciplined approach to neural network hyper-parameters: Part 1,
#' <https://arxiv.org/abs/1803.09820>.
#'
#' Loshchilov and Hutter (2017), SGDR: Stochastic Gradient Descent with Warm Restarts,
#' <https://arxiv.org/abs/1608.03983>.
#'
#' Goyal et al. (2017), Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour,
#' <https://arxiv.org/abs/1706.02677>.
#' @name gpu_schedule
#' @examplesIf gpukeras:::can_run_examples()
#' schedule <- schedule_one_cycle(max_rate = 0.01)
#' schedule
#' plot(schedule, epochs = 20, steps_per_epoch = 50)
#'
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' gpu_fit(gpu_mlp(train), train, epochs = 5, schedule = schedule, verbose = FALSE)
#'
#' # A warm-up of half an epoch before a rate that falls when the validation loss stops improving.
#' schedule_plateau(patience = 3, monitor = "val_loss", warmup = 0.5)
#' @export
schedule_one_cycle <- function(max_rate = NULL, pct_start = 0.3, div_factor = 25, final_div = 1e4,
                               anneal = "cos", warmup = 0, warmup_from = 0.01) {
  new_gpu_schedule("one_cycle", list(
    max_rate = max_rate, pct_start = pct_start, div_factor = div_factor, final_div = final_div,
    anneal = anneal, warmup = warmup, warmup_from = warmup_from
  ))
}

#' @param min_rate The lowest rate. For `schedule_cyclic()`, `NULL` is a quarter of the highest.
#' @param policy `"triangular"` (all cycles have the same height), `"triangular2"` (each cycle has
#'   half the height of the one before) or `"exp_range"` (the height falls by `gamma` at each step).
#' @param step_size Length of half a cycle.
#' @param unit Unit of `step_size`: `"epochs"` or `"steps"`.
#' @param gamma Factor of the height at each step, for `"exp_range"`.
#' @rdname gpu_schedule
#' @export
schedule_cyclic <- function(max_rate = NULL, min_rate = NULL, policy = "triangular",
                            step_size = 2, unit = "epochs", gamma = 0.99994,
                            warmup = 0, warmup_from = 0.01) {
  new_gpu_schedule("cyclic", list(
    max_rate = max_rate, min_rate = min_rate, policy = policy, step_size = step_size, unit = unit,
    gamma = gamma, warmup = warmup, warmup_from = warmup_from
  ))
}

#' @param cycles Number of cosine cycles, all of the same length.
#' @rdname gpu_schedule
#' @export
schedule_warmup_cosine <- function(max_rate = NULL, min_rate = 0, warmup = 1, cycles = 1,
                                   warmup_from = 0.01) {
  new_gpu_schedule("warmup_cosine", list(
    max_rate = max_rate, min_rate = min_rate, warmup = warmup, cycles = cycles,
    warmup_from = warmup_from
  ))
}

#' @param rate The first rate; `NULL` is the optimizer's own. For `plot()`, the optimizer's own.
#' @param decay Factor of the rate every `every` epochs.
#' @param every A number of epochs, possibly fractional.
#' @param staircase Whether the rate falls at once at the end of every `every` epochs, rather than
#'   gradually.
#' @rdname gpu_schedule
#' @export
schedule_exponential <- function(rate = NULL, decay = 0.9, every = 1, staircase = FALSE,
                                 min_rate = 0, warmup = 0, warmup_from = 0.01) {
  new_gpu_schedule("exponential", list(
    rate = rate, decay = decay, every = every, staircase = staircase, min_rate = min_rate,
    warmup = warmup, warmup_from = warmup_from
  ))
}

#' @param factor Factor of the rate when the metric stops improving.
#' @param patience Epochs without improvement before the rate is reduced.
#' @param monitor Name of the metric; `NULL` is the validation loss, or the loss without validation.
#' @param mode Which is better: `"min"` or `"max"`; `NULL` takes what the metric says, or its
#'   name, and refuses a metric that says neither.
#' @param min_delta Smallest change that counts as an improvement.
#' @param cooldown Epochs after a reduction that do not count towards `patience`.
#' @rdname gpu_schedule
#' @export
schedule_plateau <- function(factor = 0.5, patience = 5, monitor = NULL, mode = NULL,
                             min_delta = 1e-4, cooldown = 0, min_rate = 0, rate = NULL,
                             warmup = 0, warmup_from = 0.01) {
  new_gpu_schedule("plateau", list(
    rate = rate, factor = factor, patience = patience, monitor = monitor, mode = mode,
    min_delta = min_delta, cooldown = cooldown, min_rate = min_rate,
    warmup = warmup, warmup_from = warmup_from
  ))
}

#' @rdname gpu_schedule
#' @export
schedule_constant <- function(rate = NULL, warmup = 0, warmup_from = 0.01) {
  new_gpu_schedule("constant", list(rate = rate, warmup = warmup, warmup_from = warmup_from))
}

# The core checks the options and returns them completed.
new_gpu_schedule <- function(kind, options, call = caller_env()) {
  given <- c(list(kind = kind), check_no_na_options(options, call))
  new_result(call_core("schedule", list(schedule = given), call = call), "gpu_schedule")
}

#' @param x A `gpu_schedule`.
#' @param epochs,steps_per_epoch The training to draw the schedule for.
#' @param ... Passed on to [graphics::plot.default()] by `plot()`.
#' @rdname gpu_schedule
#' @export
plot.gpu_schedule <- function(x, epochs = 10, steps_per_epoch = 100, rate = 0.001, ...) {
  check_no_na_options(list(epochs = epochs, steps_per_epoch = steps_per_epoch, rate = rate))
  rates <- call_core("draw_rates", list(
    schedule = unclass(x), rate = rate, epochs = epochs, steps_per_epoch = steps_per_epoch
  ))
  shown <- unique(round(seq(1, length(rates), length.out = min(length(rates), 5000))))
  defaults <- list(type = "l", lwd = 2, col = "#1f77b4", xlab = "epoch", ylab = "learning rate")
  graphics_options <- utils::modifyList(defaults, list(...))
  do.call(graphics::plot, c(list((shown - 1) / steps_per_epoch, rates[shown]), graphics_options))
  invisible(x)
}

#' @export
format.gpu_schedule <- function(x, ...) {
  course <- switch(x$kind,
    one_cycle = format_one_cycle(x),
    cyclic = format_cyclic(x),
    warmup_cosine = format_cosine(x),
    exponential = format_exponential(x),
    plateau = format_plateau(x),
    constant = paste(format_rate(x$rate), "throughout")
  )
  format_fields(
    paste("<gpu_schedule>", gsub("_", " ", x$kind)),
    rate = course,
    "warm-up" = if (x$warmup > 0) {
      sprintf(
        "%s, from %s %% of the first rate", format_epochs(x$warmup),
        format_number(100 * x$warmup_from)
      )
    }
  )
}

format_one_cycle <- function(x) {
  sprintf(
    "from 1/%s of the highest, up to %s over %s %% of the steps, down to 1/%s of the first (%s)",
    format_number(x$div_factor, mark = ","), format_rate(x$max_rate),
    format_number(100 * x$pct_start), format_number(x$final_div, mark = ","), x$anneal
  )
}

format_cyclic <- function(x) {
  size <- if (x$unit == "epochs") {
    format_epochs(x$step_size)
  } else {
    paste(format_number(x$step_size, mark = ","), "steps")
  }
  height <- switch(x$policy,
    triangular = "",
    triangular2 = ", each time half as high",
    exp_range = sprintf(", at each step %s times as high", format_number(x$gamma, 7))
  )
  lowest <- if (is.null(x$min_rate)) "a quarter of it" else format_number(x$min_rate)
  sprintf(
    "up to %s from %s in %s and down again%s (%s)", format_rate(x$max_rate), lowest, size,
    height, x$policy
  )
}

format_cosine <- function(x) {
  sprintf(
    "from %s down to %s along a cosine%s", format_rate(x$max_rate), format_number(x$min_rate),
    if (x$cycles == 1) "" else sprintf(", %d times", x$cycles)
  )
}

format_exponential <- function(x) {
  sprintf(
    "from %s, times %s every %s, %s%s", format_rate(x$rate), format_number(x$decay),
    if (x$every == 1) "epoch" else format_epochs(x$every),
    if (x$staircase) "at once" else "bit by bit", format_lowest(x)
  )
}

format_plateau <- function(x) {
  sprintf(
    "from %s, times %s when %s gets no better for %s%s", format_rate(x$rate),
    format_number(x$factor), x$monitor %||% "the (validation) loss", format_epochs(x$patience),
    format_lowest(x)
  )
}

format_lowest <- function(x) {
  if (x$min_rate > 0) paste(", not below", format_number(x$min_rate)) else ""
}

format_rate <- function(rate) {
  if (is.null(rate)) "the optimizer's own" else format_number(rate)
}

format_epochs <- function(x) {
  paste(format_number(x, mark = ","), if (x == 1) "epoch" else "epochs")
}
