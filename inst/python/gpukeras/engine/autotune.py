"""Which engine trains, and how many batches a call: decided from times, without TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

# Batches a call where a step of the user's own is to repeat bit by bit: the last one of each call
# runs outside of the loop, where XLA may round otherwise.
FIXED_BATCHES = 16
CALL_S = 0.2  # seconds a call should take: progress and interrupts stay alive
PREPARING_CALL_S = 0.05  # and while another engine is being compiled, which may be faster
TRIAL_S = (0.05, 0.5)  # seconds a timed trial must last to be trusted: at least, at most
TRIAL_SHARE = 0.01  # of the time that is left; the more is left, the more a mistake would cost
TRIAL_GROWTH = 8  # the first calls are short: nothing is known yet
# What starting another engine costs, as a multiple of what the first one's start took on this
# computer with this model: tracing once more; tracing and compiling (0.35 s against 1.0 measured).
PRICE = {"superstep": 1.0, "keras": 1.0, "compiled": 3.0}
# Seconds a batch below which a call a batch cannot win: the call alone takes 0.3 to 1 ms. What it
# does better, ops that run on several threads in a loop of their own, shows in slow batches only.
KERAS_BATCH_S = 1e-3
NO_TEXT = "XLA cannot compile a model that takes text"
# An engine is tried when the time left is so many times its price. Where batches are fast, the
# first engine saves more over Keras than a trial costs. Where they are slow, it saves nothing, and
# another may not either: there the trial must be lost in the time that is left.
PAYBACK, SLOW_PAYBACK = 1.5, 30.0
BESIDE = ("compiled",)  # started in a thread, while the fastest so far goes on


@dataclass(frozen=True)
class EngineFacts:
    """What decides which engines are candidates.

    Args:
        requested: "auto" or the name of an engine.
        jit: The session's wish from `gpu_setup(jit = )`: "auto", true or false.
        model_jit: Whether the model's layers and compile settings allow XLA.
        eager: Whether the model was compiled with `run_eagerly`.
        deterministic: Whether the session asked for determinism.
        batch_hook: Name of a callback that must see every batch, or "".
        own_function: Whether the model's class brings its own `make_train_function()`.
        replicas: Of the model.
        own_step: Whether its class brings a step of its own.
        text: Whether the model gets texts.
    """

    requested: str = "auto"
    jit: str | bool = "auto"
    model_jit: bool = True
    eager: bool = False
    deterministic: bool = False
    batch_hook: str = ""
    own_function: bool = False
    replicas: int = 1
    own_step: bool = False
    text: bool = False


@dataclass(frozen=True)
class Trial:
    """One engine's measurement.

    Args:
        engine: Its name.
        start_s: Seconds of its first batch, tracing and compiling included, also where that was
            done beside the training.
        batch_s: Seconds a batch afterwards; None if it was refused.
        refused: Why it could not run, or "".
    """

    engine: str
    start_s: float
    batch_s: float | None
    refused: str = ""


@dataclass(frozen=True)
class EngineChoice:
    """The engine that trains, why, and what was measured."""

    engine: str
    reason: str
    trials: tuple[Trial, ...] = ()


def choose_candidates(facts: EngineFacts) -> tuple[tuple[str, ...], str]:
    """The engines to measure, in order of their price; and why others are not, or ""."""
    if facts.text and (
        facts.requested == "compiled" or (facts.requested, facts.jit) == ("auto", True)
    ):
        return ("superstep",), f"{NO_TEXT}, as was asked"
    if facts.requested != "auto":
        return (facts.requested,), "as asked"
    for condition, engine, reason in (
        (facts.eager, "keras", "the model was compiled with run_eagerly"),
        (facts.own_function, "keras", "the model brings its own train function"),
        (bool(facts.batch_hook), "keras", f"callback {facts.batch_hook} works on every batch"),
        (facts.replicas > 1, "superstep", "XLA compiles for one device, and there are several"),
        (facts.jit is True, "compiled", "gpu_setup(jit = TRUE)"),
    ):
        if condition:
            return (engine,), reason
    if facts.deterministic:  # the first that runs the model
        return ("superstep", "keras"), "a choice by timing would not repeat (deterministic)"
    if facts.jit is False or not facts.model_jit or facts.text:
        return ("superstep", "keras"), NO_TEXT if facts.text else ""
    return ("superstep", "keras", "compiled"), ""


def choose_evaluation_candidates(facts: EngineFacts) -> tuple[str, ...]:
    """The engines to measure for evaluation: in large batches Keras' own has no advantage."""
    candidates, _ = choose_candidates(facts)
    return tuple(name for name in candidates if name != "keras") or candidates


def choose_count(batch_s: float | None, left: int, call_s: float = CALL_S) -> int:
    """Batches for the next call, so that it takes about `call_s`."""
    if batch_s is None:
        return 1
    return max(1, min(left, int(call_s / max(batch_s, 1e-9))))


def choose_trial_s(batch_s: float, batches_left: int) -> float:
    """Seconds that a timed trial must last."""
    return min(max(TRIAL_SHARE * batch_s * batches_left, TRIAL_S[0]), TRIAL_S[1])


def choose_trial_count(requested_s: float, batch_s: float, largest: int) -> int:
    """Batches of the next timed call: enough for the trial, but small steps up to there."""
    enough = int(requested_s / max(batch_s, 1e-9)) + 1
    return max(largest, min(TRIAL_GROWTH * largest, enough))


def is_worth_trying(engine: str, start_s: float, best_batch_s: float, batches_left: int) -> bool:
    """Whether the time that is left can pay for starting another engine.

    Args:
        engine: The engine to try.
        start_s: Seconds that the first engine's start took.
        best_batch_s: Seconds a batch of the fastest engine so far.
        batches_left: Batches that are left to train.
    """
    slow = best_batch_s >= KERAS_BATCH_S
    if engine == "keras" and not slow:
        return False
    payback = SLOW_PAYBACK if slow else PAYBACK
    return best_batch_s * batches_left > payback * PRICE[engine] * start_s


def choose_fastest(trials: tuple[Trial, ...], skipped: tuple[str, ...]) -> EngineChoice:
    """The fastest of the engines tried, with the figures; and those that could not pay."""
    ran = sorted((t for t in trials if t.batch_s is not None), key=lambda t: t.batch_s or 0.0)
    best, others = ran[0], ran[1:]
    reason = f"{_micro(best)} a batch"
    if others:
        figures = " and ".join(f"{_micro(t)} ({t.engine})" for t in others)
        reason = f"measured fastest: {reason} against {figures}"
    if skipped:
        reason += f"; too few batches left to pay for trying {' and '.join(skipped)}"
    return EngineChoice(best.engine, reason, trials)


def _micro(trial: Trial) -> str:
    return f"{1e6 * (trial.batch_s or 0.0):,.0f} us"


class EngineAutotuner:
    """Decides call by call which engine runs how many batches; knows time, not TensorFlow.

    Args:
        candidates: Engines to measure, cheapest first.
        batches: Batches of all epochs.
        reason: Why other engines are no candidates, or "".
        started_s: What the first one's start took when it was traced, if that was in an earlier
            training; 0 if it is still to be.
        facts: Where they ask for determinism nothing that changes results goes by time.

    Attributes:
        started_s: What the first one's start took, now or then.
        engine: What runs the next call.
        preparing: The engine that is to be made ready beside it, then tried; or "".
        choice: What was chosen, once it is.
    """

    def __init__(
        self,
        candidates: tuple[str, ...],
        batches: int,
        reason: str = "",
        started_s: float = 0.0,
        facts: EngineFacts | None = None,
    ) -> None:
        """Starts with the first candidate."""
        facts = facts or EngineFacts()
        self._first = facts.deterministic
        self._fixed = FIXED_BATCHES if facts.deterministic and facts.own_step else 0
        self.started_s = started_s
        self._waiting = list(candidates[1:])
        self._batches_left = batches
        self._reason = reason
        self._start_s: float | None = None
        self._begin_trial()
        self._batch_s: float | None = None
        self.trials: tuple[Trial, ...] = ()
        self.engine, self.preparing = candidates[0], ""
        self.choice: EngineChoice | None = None

    def count(self, left: int) -> int:
        """Batches for the next call, at most `left`."""
        if self._fixed:
            return min(left, self._fixed)
        if self.choice:
            return choose_count(self._batch_s, left)
        if self.preparing:
            return choose_count(self._batch_s, left, PREPARING_CALL_S)
        return 1 if self._start_s is None else min(left, self._count)

    def record(self, count: int, seconds: float) -> None:
        """Takes the time of a call that trained `count` batches."""
        self._batches_left -= count
        if self.choice:
            # A call that is cut short by a small block says little about the cost of a batch.
            self._batch_s = min(self._batch_s or seconds / count, seconds / count)
        elif self.preparing:
            return  # its compiling slows down what runs beside it
        elif self._start_s is None:
            self._start_s = seconds
            self.started_s = self.started_s or seconds
            if self._first:
                self.choice = EngineChoice(self.engine, self._reason, self.trials)
        else:
            self._record_trial(count, seconds)

    def try_prepared(self, took_s: float) -> None:
        """What was being prepared is ready, after `took_s`: the next calls are its trial."""
        self.engine, self.preparing = self.preparing, ""
        self._begin_trial()
        self._prepared_s = took_s

    def settle(self, engine: str, why: str) -> None:
        """There is no choice any more: only this engine takes the batches that come now."""
        asked = "" if self._reason != "as asked" or self.engine == engine else self.engine
        why += f'; "{asked}" was asked' if asked else ""
        self.choice = EngineChoice(engine, why, self.trials)
        self.engine, self.preparing, self._batch_s = engine, "", None

    def refuse(self, why: str) -> bool:
        """The engine on trial, or in preparation, cannot run this model; false without another."""
        self.trials += (Trial(self.preparing or self.engine, 0.0, None, why),)
        self.preparing = ""
        if not self._waiting and not any(t.batch_s for t in self.trials):
            return False
        self._go_on()
        return True

    def finish(self) -> EngineChoice:
        """The choice, made from what is known if the batches ran out during a trial."""
        if self.choice is None:
            known = tuple(t for t in self.trials if t.batch_s is not None)
            if known:
                return choose_fastest(self.trials, (self.preparing,) if self.preparing else ())
            return EngineChoice(self.engine, self._reason or "too few batches to measure another")
        return self.choice

    def _begin_trial(self) -> None:
        self._start_s = None
        self._prepared_s = 0.0
        self._count, self._largest, self._measured = 1, 0, (0, 0.0)

    def _record_trial(self, count: int, seconds: float) -> None:
        """Only the largest calls count: in small ones the call itself is most of the time."""
        batches, total_s = self._measured
        if count > self._largest:
            batches, total_s, self._largest = 0, 0.0, count
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
        """To the next engine that is worth trying, or to a choice."""
        ran = [trial for trial in self.trials if trial.batch_s is not None]
        fastest = min(ran, key=lambda trial: trial.batch_s or 0.0, default=None)
        best = float("inf") if fastest is None else fastest.batch_s or 0.0
        self._begin_trial()
        skipped = []
        while self._waiting:
            engine = self._waiting.pop(0)
            if is_worth_trying(engine, self.started_s, best, self._batches_left):
                self._go_on_with(engine, fastest)
                return
            skipped += [engine] if engine != "keras" or best >= KERAS_BATCH_S else []
        choice = choose_fastest(self.trials, tuple(skipped))
        reason = f"{self._reason}: {choice.reason}" if self._reason else choice.reason
        self.choice = EngineChoice(choice.engine, reason, self.trials)
        self.engine, self._batch_s = choice.engine, best

    def _go_on_with(self, engine: str, fastest: Trial | None) -> None:
        if engine in BESIDE and fastest is not None:
            self.engine, self.preparing, self._batch_s = fastest.engine, engine, fastest.batch_s
        else:
            self.engine = engine
