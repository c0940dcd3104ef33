"""Chooses the engine and the number of batches per call from measured times; no TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpukeras.core.errors import SpecError
from gpukeras.engine.trip_counts import choose_size

ALL_ENGINES = ("graph_loop", "keras", "compiled")
# Batches per call where a user's own step must repeat bit by bit: the last batch of each call
# runs outside of the loop, where XLA may round differently.
FIXED_BATCHES = 16
CALL_S = 0.2  # seconds that a call should take, so that progress and interrupts are handled in time
PREPARING_CALL_S = 0.05  # the same while another engine, which may be faster, is being compiled
TRIAL_S = (0.05, 0.5)  # least and most seconds of a reliable timed trial
TRIAL_SHARE = 0.01  # of the time that is left: the longer the rest, the costlier a wrong choice
TRIAL_GROWTH = 8  # the first calls are short, because the time per batch is unknown
# The cost of starting another engine, as a multiple of the first engine's start on this computer
# with this model: tracing once more; tracing and compiling (0.35 s against 1.0 measured).
PRICE = {"graph_loop": 1.0, "keras": 1.0, "compiled": 3.0}
# Seconds per batch below which "keras" cannot win: a call alone takes 0.3 to 1 ms. Its advantage,
# ops that run on several threads in their own loops, shows in slow batches only.
KERAS_BATCH_S = 1e-3
JAX_ENGINE = "on JAX XLA compiles every engine, and the loop over batches has the least overhead"
# Ms a batch in a loop and in Keras' calls: 187 and 36, 0.8 and 0.7, tiny ones 0.4 and 0.7 (2 cores)
CONVOLVES = "on a CPU XLA's convolutions are slow inside a loop"
REPEATS = "a choice by timing would not repeat"
NO_TEXT = "XLA cannot compile a model that takes text"
# An engine is tried when the time left is this multiple of its price. Where batches are fast, the
# first engine saves more over Keras than a trial costs. Where they are slow, neither it nor another
# engine may save anything: there the trial must be small against the time that is left. Between
# the two XLA may still halve the time (1.1 ms to 0.42 measured), so its multiple grows with the
# square of a batch's time, and a computer that is a little slower does not choose otherwise.
PAYBACK, SLOW_PAYBACK = 1.5, 30.0
BESIDE = ("compiled",)  # prepared in a thread, while the fastest engine so far trains
# Small batches of dense layers on a CPU: there XLA's loop won whenever it was measured, and in a
# long training measuring costs more than it can tell. Microseconds of a batch in "graph_loop" and
# "compiled" (2 cores, load 3 to 4, fastest of 4 epochs; layers' units, rows a batch):
#
#     20-64-10, 32 rows (0.4 MFLOP)              239    36
#     20-64-10, 256 rows, AdamW (3)              503   132
#     50-128-64-10, 128 rows (12)                442   299
#     100-128-128-10, 64 rows, batch norm (12)   686   257
#     20-64-64-10, 512 rows, layer norm (20)   1,916   571
#     784-64-64-10, 64 rows (21)                 598   410
#     20-512-512-10, 32 rows (54)              2,850 1,146
#     20-256-256-10, 256 rows (113)            1,967 2,129
#
# It starts 0.7 s later, which 5,000 batches make up for at the least difference, 0.14 ms.
FORESEEN_FLOPS, FORESEEN_BATCHES = 25e6, 7000


@dataclass(frozen=True)
class EngineFacts:
    """The facts that decide which engines are candidates.

    Args:
        requested: "auto" or the name of an engine.
        available: The engines that the backend has.
        jit: The session's setting from `gpu_setup(jit = )`: "auto", true or false.
        model_jit: Whether the model's layers and compile settings allow XLA.
        eager: Whether the model was compiled with `run_eagerly`.
        repeats: Whether the training is to repeat, so that no time chooses anything.
        batch_hook: Name of a callback that must see every batch, or "".
        own_function: Whether the model's class overrides `make_train_function()`.
        replicas: Number of replicas of the model.
        own_step: Whether its class overrides the step.
        text: Whether the model takes strings.
        dense_flops: FLOPs of a batch, if the model has only dense layers and such on a CPU.
        convolves: Whether it has convolutions, on a CPU.
        as_keras: Whether losses are to be those of Keras' own `fit()`, on a CPU. XLA rounds
            otherwise, and first epochs amplify that (3e-4 of a loss): it starts no training.
    """

    requested: str = "auto"
    available: tuple[str, ...] = ALL_ENGINES
    jit: str | bool = "auto"
    model_jit: bool = True
    eager: bool = False
    repeats: bool = False
    batch_hook: str = ""
    own_function: bool = False
    replicas: int = 1
    own_step: bool = False
    text: bool = False
    dense_flops: float = math.inf
    convolves: bool = False
    as_keras: bool = False

    @property
    def on_jax(self) -> bool:
        """Whether Keras runs on JAX."""
        return "graph_loop" not in self.available


@dataclass(frozen=True)
class Trial:
    """The measurement of one engine.

    Args:
        engine: Its name.
        start_s: Seconds of its first batch, including tracing and compiling, even if that was done
            in the background.
        batch_s: Seconds per batch afterwards; None if the engine was refused.
        refused: Why it could not run, or "".
    """

    engine: str
    start_s: float
    batch_s: float | None
    refused: str = ""


@dataclass(frozen=True)
class EngineChoice:
    """The engine that trains, the reason, and the measurements."""

    engine: str
    reason: str
    trials: tuple[Trial, ...] = ()


def choose_candidates(facts: EngineFacts) -> tuple[tuple[str, ...], str]:
    """Returns the engines to measure, cheapest first; and why others are excluded, or "".

    Raises:
        SpecError: for an engine that the backend does not have.
    """
    _check_available(facts)
    if facts.text and (
        facts.requested == "compiled" or (facts.requested, facts.jit) == ("auto", True)
    ):
        return ("graph_loop",), f"{NO_TEXT}, as was asked"
    if facts.requested != "auto":
        return (facts.requested,), "as asked"
    for condition, engine, reason in (
        (facts.eager, "keras", "the model was compiled with run_eagerly"),
        (facts.own_function, "keras", "the model brings its own train function"),
        (bool(facts.batch_hook), "keras", f"callback {facts.batch_hook} works on every batch"),
        (facts.replicas > 1, "graph_loop", "XLA compiles for one device, and there are several"),
        (facts.jit is True, "compiled", "gpu_setup(jit = TRUE)"),
        (facts.on_jax and facts.convolves, "keras", CONVOLVES),
        (facts.on_jax, "compiled" if facts.model_jit else "keras", JAX_ENGINE),
    ):
        if condition:
            return (engine,), reason
    if facts.jit is False or not facts.model_jit or facts.text:
        why = REPEATS if facts.repeats else ""
        return ("graph_loop", "keras"), NO_TEXT if facts.text else why
    return ("graph_loop", "keras", "compiled"), REPEATS if facts.repeats else ""


def _check_available(facts: EngineFacts) -> None:
    if facts.requested not in ("auto", *facts.available):
        raise SpecError(
            f'The engine "{facts.requested}" runs on TensorFlow only, and Keras runs on JAX here.',
            hint='Use `engine = "compiled"`, the same loop over many batches.',
            arg="engine",
        )


def choose_evaluation_candidates(facts: EngineFacts) -> tuple[str, ...]:
    """Returns the engines to measure for evaluation: "keras" has no advantage in large batches."""
    candidates, _ = choose_candidates(facts)
    return tuple(name for name in candidates if name != "keras") or candidates


def choose_count(batch_s: float | None, left: int, call_s: float = CALL_S) -> int:
    """Returns the number of batches for the next call, so that it takes about `call_s`.

    Args:
        batch_s: Seconds per batch; None if unknown.
        left: Batches left.
        call_s: Seconds that the call should take.
    """
    if batch_s is None:
        return 1
    return max(1, min(left, int(call_s / max(batch_s, 1e-9))))


def choose_trial_s(batch_s: float, batches_left: int) -> float:
    """Returns the seconds that a timed trial must last."""
    return min(max(TRIAL_SHARE * batch_s * batches_left, TRIAL_S[0]), TRIAL_S[1])


def choose_trial_count(requested_s: float, batch_s: float, largest: int) -> int:
    """Returns the batches of the next timed call: enough for the trial, but growing in small steps.

    Args:
        requested_s: Seconds that the trial must last.
        batch_s: Seconds per batch so far.
        largest: Batches of the largest call so far.
    """
    enough = int(requested_s / max(batch_s, 1e-9)) + 1
    return max(largest, min(TRIAL_GROWTH * largest, enough))


def is_worth_trying(engine: str, start_s: float, best_batch_s: float, batches_left: int) -> bool:
    """Whether starting another engine can pay off in the time that is left.

    Args:
        engine: The engine to try.
        start_s: Seconds that the first engine's start took.
        best_batch_s: Seconds per batch of the fastest engine so far.
        batches_left: Batches that are left to train.
    """
    slowness = best_batch_s / KERAS_BATCH_S
    if engine == "keras" and slowness < 1:
        return False
    payback = PAYBACK * max(1.0, slowness) ** 2 if engine in BESIDE else SLOW_PAYBACK
    return best_batch_s * batches_left > min(payback, SLOW_PAYBACK) * PRICE[engine] * start_s


def foresee_compiled(facts: EngineFacts, batches: int) -> str:
    """Returns why "compiled" will be fastest, so that nothing is measured; or "".

    Args:
        facts: The facts.
        batches: Batches that are left to train, and expected of later trainings.
    """
    if facts.dense_flops > FORESEEN_FLOPS or batches < FORESEEN_BATCHES:
        return ""
    return "fastest for small batches of dense layers on a CPU, whenever it was measured"


def rank_trials(trials: tuple[Trial, ...]) -> list[Trial]:
    """Returns the trials of engines that ran, the fastest first."""
    ran = [trial for trial in trials if trial.batch_s is not None]
    return sorted(ran, key=lambda trial: trial.batch_s or 0.0)


def choose_fastest(trials: tuple[Trial, ...], skipped: tuple[str, ...]) -> EngineChoice:
    """Returns the fastest engine tried, with the times; names engines that could not pay off."""
    best, *others = rank_trials(trials)
    reason = f"{format_batch_time(best.batch_s)} a batch"
    if others:
        figures = " and ".join(f"{format_batch_time(t.batch_s)} ({t.engine})" for t in others)
        reason = f"measured fastest: {reason} against {figures}"
    if skipped:
        reason += f"; too few batches left to pay for trying {' and '.join(skipped)}"
    return EngineChoice(best.engine, reason, trials)


def format_batch_time(seconds: float | None) -> str:
    """Returns the time of a batch in microseconds."""
    return f"{1e6 * (seconds or 0.0):,.0f} us"


class EngineAutotuner:
    """Decides call by call which engine runs how many batches; uses times, not TensorFlow.

    Args:
        candidates: Engines to measure, cheapest first.
        batches: Batches of all epochs.
        reason: Why other engines are not candidates, or "".
        started_s: Seconds of the first engine's start if it was traced in an earlier training; 0
            otherwise.
        facts: If the training is to repeat, the first candidate that can run is the choice.
        later: Batches expected of later trainings of equal models, which a start serves too.
        settled: Whether the first candidate that runs the model is the choice.
        batch_s: Seconds of a batch in an earlier training of this model; infinity if there was
            none. Where calls have programs of their length, the first is as long as later ones.
            A first call that tells its batches from compiling gives it too.

    Attributes:
        started_s: Seconds of the first engine's start, in this training or an earlier one.
        engine: The engine of the next call.
        preparing: The engine to be prepared in the background and then tried; or "".
        choice: The choice, once it is made.
    """

    def __init__(
        self,
        candidates: tuple[str, ...],
        batches: int,
        reason: str = "",
        started_s: float = 0.0,
        facts: EngineFacts | None = None,
        *,
        later: int = 0,
        settled: bool = False,
        batch_s: float = math.inf,
    ) -> None:
        """Starts with the first candidate."""
        facts = facts or EngineFacts()
        self._settled, self._repeats = settled, facts.repeats
        self._fixed = FIXED_BATCHES if facts.repeats and facts.own_step else 0
        self.started_s = started_s
        self._waiting = list(candidates[1:])
        self._batches_left, self._later = batches, later
        self._reason = reason
        self._start_s: float | None = None
        self._earlier_s = batch_s
        self._begin_trial()
        self._batch_s: float | None = None
        self.trials: tuple[Trial, ...] = ()
        self.engine, self.preparing = candidates[0], ""
        self.choice: EngineChoice | None = None
        self._kept_off = ""

    @property
    def batch_s(self) -> float:
        """Seconds of a batch, as far as they are known; infinity before."""
        batches, seconds = self._measured
        return self._batch_s or (seconds / batches if batches else self._earlier_s)

    def count(self, left: int, batches: int = 0) -> int:
        """Returns the number of batches for the next call, at most `left`.

        Args:
            left: Batches that are left.
            batches: Batches of their block, where only some numbers have programs; else 0.
        """
        if self._fixed:
            return min(left, self._fixed)
        if batches and self.batch_s < math.inf:  # or that of the engine that trained until now
            return min(left, choose_size(batches, self.batch_s))
        return self._count_by_time(left)

    def _count_by_time(self, left: int) -> int:
        if self.choice:
            return choose_count(self._batch_s, left)
        if self.preparing:
            return choose_count(self._batch_s, left, PREPARING_CALL_S)
        return 1 if self._start_s is None else min(left, self._count)

    def record(self, count: int, seconds: float, compiled_s: float = 0.0) -> None:
        """Records a call.

        Args:
            count: The batches that it trained.
            seconds: Its time; infinity if it is not known.
            compiled_s: The part of it in which the engine compiled; 0 if that is not known.
        """
        self._batches_left -= count
        ran_s = seconds - compiled_s
        if self.choice:
            # A call that a small block cut short gives no good estimate of the time per batch.
            self._batch_s = min(self._batch_s or ran_s / count, ran_s / count)
        elif self.preparing:
            return  # compiling slows down the engine that trains
        elif self._start_s is None:
            self._start_s = seconds
            self.started_s = self.started_s or seconds
            if compiled_s:
                self._earlier_s = ran_s / count
            if self._settled or self._repeats:
                self.choice = EngineChoice(self.engine, self._reason, self.trials)
        elif ran_s < math.inf:
            self._record_trial(count, ran_s)

    def try_prepared(self, took_s: float) -> None:
        """Starts the trial of the engine in preparation, which took `took_s` to prepare."""
        self.engine, self.preparing = self.preparing, ""
        self._begin_trial()
        self._prepared_s = took_s

    def settle(self, engine: str, why: str) -> None:
        """Ends the measurements: from now on only this engine can run the batches."""
        asked = "" if self._reason != "as asked" or self.engine == engine else self.engine
        why += f'; "{asked}" was asked' if asked else ""
        self.choice = EngineChoice(engine, why, self.trials)
        self.engine = engine
        self.preparing = ""
        self._batch_s = None

    def refuse(self, why: str) -> bool:
        """Excludes the engine on trial or in preparation; returns False if there is no other."""
        self.trials += (Trial(self.preparing or self.engine, 0.0, None, why),)
        self.preparing = ""
        if self._settled:  # by what no longer holds: measure
            self._settled, self._reason = False, REPEATS if self._repeats else ""
        if not self._waiting and not any(t.batch_s for t in self.trials):
            return False
        self._go_on()
        return True

    def keep_checks(self, why: str) -> None:
        """Excludes XLA's engine, which would drop a check of the rows, whenever that is seen."""
        if self.choice is None and self.refuse(why):
            if not self._kept_off and self.choice is not None:
                self.choice = replace(self.choice, reason=f"{self.choice.reason}; {why}")
            self._kept_off = why
        else:
            self.settle("graph_loop", why)

    def _told(self, choice: EngineChoice) -> EngineChoice:
        """Returns a choice that says what kept XLA off."""
        if not self._kept_off:
            return choice
        return replace(choice, reason=f"{choice.reason}; {self._kept_off}")

    def finish(self) -> EngineChoice:
        """Returns the choice; if the batches ran out during a trial, from the completed trials."""
        if self.choice is None:
            if rank_trials(self.trials):
                begun = self.preparing or self.engine
                choice = choose_fastest(self.trials, ())
                reason = f"{choice.reason}; too few batches left to measure {begun}"
                return self._told(replace(choice, reason=reason))
            reason = self._reason or "too few batches to measure another"
            return self._told(EngineChoice(self.engine, reason))
        return self.choice

    def _begin_trial(self) -> None:
        self._start_s = None
        self._prepared_s = 0.0
        self._count = 1
        self._largest = 0
        self._measured = (0, 0.0)

    def _record_trial(self, count: int, seconds: float) -> None:
        """Uses only the largest calls: in small ones the call itself takes most of the time."""
        batches, total_s = self._measured
        if count > self._largest:
            batches = 0
            total_s = 0.0
            self._largest = count
        if count == self._largest:
            batches, total_s = batches + count, total_s + seconds
        self._measured, batch_s = (batches, total_s), total_s / max(1, batches)
        requested_s = choose_trial_s(batch_s, self._batches_left)
        self._count = choose_trial_count(requested_s, batch_s, self._largest)
        if total_s >= requested_s:
            start_s = self._prepared_s + (self._start_s or 0.0)
            self.trials += (Trial(self.engine, start_s, total_s / batches),)
            self._go_on()

    def _go_on(self) -> None:
        """Moves to the next engine that is worth trying, or to a choice."""
        fastest = next(iter(rank_trials(self.trials)), None)
        best = float("inf") if fastest is None else fastest.batch_s or 0.0
        self._begin_trial()
        skipped = []
        expected = self._batches_left + self._later
        while self._waiting:
            engine = self._waiting.pop(0)
            if is_worth_trying(engine, self.started_s, best, expected):
                self._go_on_with(engine, fastest)
                return
            skipped += [engine] if engine != "keras" or best >= KERAS_BATCH_S else []
        choice = choose_fastest(self.trials, tuple(skipped))
        reason = f"{self._reason}: {choice.reason}" if self._reason else choice.reason
        self.choice = self._told(EngineChoice(choice.engine, reason, self.trials))
        self.engine, self._batch_s = choice.engine, best

    def _go_on_with(self, engine: str, fastest: Trial | None) -> None:
        if engine in BESIDE and fastest is not None:
            self.engine = fastest.engine
            self.preparing = engine
            self._batch_s = fastest.batch_s
        else:
            self.engine = engine
