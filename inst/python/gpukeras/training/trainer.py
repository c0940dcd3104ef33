"""Runs one training through Keras' own `fit()`, with its callbacks, metrics and history.

An epoch has few Keras steps; in each, the train function runs the batches up to that step's share.
"""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpukeras.backend import devices, runtime, tensor_ops
from gpukeras.backend.oom import explain_exhaustion
from gpukeras.checkpoint.manager import open_saver
from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.errors import GpuKerasError, OutOfMemoryError, RefusedRowsError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.metric_values import Value, read_metrics, split_components
from gpukeras.core.options import FitSpec
from gpukeras.data.base import Dataset
from gpukeras.data.dataset import MapDataset
from gpukeras.data.loading.block import Block
from gpukeras.data.loading.loader import open_loader
from gpukeras.distributed.strategy import Strategy
from gpukeras.engine.autotune import EngineAutotuner, choose_candidates
from gpukeras.engine.autotune_cache import open_autotuner
from gpukeras.engine.batch_dependence import choose_batches
from gpukeras.engine.engine_facts import explain_test_hook, read_engine_facts
from gpukeras.engine.engines import Engines
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.optimizer import read_rate
from gpukeras.engine.predict_loop import fixed_rows, model_device
from gpukeras.engine.train_step import can_split
from gpukeras.models import compatibility
from gpukeras.models.state import apply_snapshot, take_snapshot
from gpukeras.training.batch_size import explain_size, plan_batches
from gpukeras.training.callbacks import functions as hooks
from gpukeras.training.callbacks.manager import open_callback_manager
from gpukeras.training.evaluation_loop import EvaluationLoop
from gpukeras.training.keras_functions import build_on, keras_steps
from gpukeras.training.keras_steps import KerasSteps
from gpukeras.training.keras_terms import KerasTerms
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.nan_guard import DivergenceGuard, NonFiniteLoss, explain_stop
from gpukeras.training.progress import Progress, explain_resumption
from gpukeras.training.report import FitReport
from gpukeras.training.summary import Outcome, summarise

EXPECTED_STEPS = 500  # assumed for an epoch of unknown length, to decide which engines are tried


@dataclass
class Trainer:
    """One training; Keras calls it at steps and epochs.

    Args:
        model: A compiled model.
        data: Rows to train on.
        validation: Rows to validate on, or None for those that `data` kept apart.
        spec: The options of the training.
        batch_size: Replaces the dataset's own.
        callbacks: Keras callbacks.
        functions: The user's functions by hook, see `callbacks`.
        listener: Receives progress events.
        strategy: The replicas of the model.
        terms: What Keras' `fit()` has and gpu_fit() has not.
    """

    model: Model
    data: Dataset
    validation: Dataset | None
    spec: FitSpec
    batch_size: int | str | None
    callbacks: Sequence[Any]
    functions: hooks.Functions
    listener: ProgressReporter
    strategy: Strategy = field(default_factory=Strategy)
    terms: KerasTerms = field(default_factory=KerasTerms)
    progress: Progress = field(default_factory=Progress)
    resumed: TrainingState | None = None
    together: int = 1
    microbatch_size: int = 0
    stopped: str = "completed"
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    device: str = "the device"
    _last_rate: float = math.nan

    def run(self) -> FitReport:
        """Trains and returns the report."""
        with ExitStack() as held:
            self._prepare(held)
            try:
                self._fit()
            except KeyboardInterrupt as error:
                self.stopped = "interrupted"
                self.strategy.agreement.leave(error)
                self.callback_manager.settle()
            except NonFiniteLoss as error:
                logs = {"loss": math.nan, **read_metrics(self.model.get_metrics_result())}
                self._give_up(str(error))
                told, epoch = [*self.callbacks, self.model.history], self.progress.epoch
                hooks.end_callbacks(told, epoch, self.runner.position, logs)
            except RefusedRowsError:
                if not self.terms.continue_on_nan:  # as in Keras, updates before the error stay
                    self.health.start_again()
                raise
            else:
                self.callback_manager.settle()
            report = self._report()
            self.saver.write_history(report)
            return report

    # Before the first step ------------------------------------------------------------------------

    def _prepare(self, held: ExitStack) -> None:
        self._started, agreement = time.perf_counter(), self.strategy.agreement
        try:
            self._prepare_rows()
        except GpuKerasError as error:
            agreement.refuse("fit", error)
            raise
        agreement.compare(self.model, self.data, self.plan, self.spec)
        self.saver = held.enter_context(open_saver(self.model, self.data, self.plan, self.spec))
        state = agreement.share_state(self.saver.resume(), self.model)
        if state is not None:
            self._resume(state)
        held.enter_context(self.strategy.hold(self.model))
        factor = self.strategy.scale_rate(self.spec.rate_scaling)
        told = self.model, self.spec, self.progress, self.loader
        skips = self.spec.validation_freq != 1 and self._validates()
        manager = held.enter_context(
            open_callback_manager(*told, state=state, rate_factor=factor, skips=skips)
        )
        self.callback_manager = manager
        self.health = DivergenceGuard(
            self.model, manager.averages, stops=not self.terms.continue_on_nan
        )
        size, asked = self.plan.batch_size, self.spec.engine
        kept = state.engine if state and asked in ("auto", "repeatable") else ""
        facts = read_engine_facts(self.model, kept or asked, self.callbacks, size, self.device)
        facts = replace(facts, text=self.data.recipe.has_texts, replicas=self.strategy.replicas)
        self.facts = replace(
            facts, as_keras=self.terms.continue_on_nan and self.device.startswith("CPU")
        )
        engines, chooser = self._open_engines()
        hooks = self._after_call, self._back_off, self._rewind
        self.runner = EpochLoop(engines, chooser, *hooks, self.loader, agreement.agree_time)
        each = bool(self.facts.batch_hook)
        self.keras_steps = KerasSteps(self.loader, self.runner, self.callbacks, each, self.together)
        held.callback(lambda: self.runner.end())
        tensor_ops.set_function(self.model, "train", self._run_keras_step)
        self.model.history = None  # not that of an earlier training, if this one does not start

    def _prepare_rows(self) -> None:
        build_on(self.model, self.data, self.batch_size)
        self.device = self.strategy.place(model_device(self.model))
        devices.reset_peak(self.device)
        plan = plan_batches(self.model, self.data, self.device, self.batch_size)
        self.notes += explain_size(plan, self.model, self.data, self.batch_size)
        self.plan = self.strategy.fit_plan(plan, self.data, self.batch_size)
        self.microbatch_size, shares = self.plan.batch_size, self.strategy.shares
        check = partial(compatibility.check_fit, self.model)
        steps = self._check_steps()
        self.loader = open_loader(
            self.data,
            self.plan,
            check,
            self._idle,
            steps_per_epoch=steps,
            initial_epoch=self.spec.initial_epoch,
            shares=shares,
        )
        if steps:
            self.plan = replace(self.plan, steps_per_epoch=steps)

    def _check_steps(self) -> int | None:
        """Returns the steps of an epoch that is a part of a pass, or None for whole passes.

        Raises:
            SpecError: for rows in sequence, or with a schedule if an epoch would be shorter.
        """
        asked, passed = self.spec.steps_per_epoch, self.plan.steps_per_epoch
        if asked is None:
            return None
        if not isinstance(self.data, MapDataset):
            raise SpecError(
                "`steps_per_epoch` comes too late: `data` gives its rows in sequence.",
                hint="Use gpu_dataset(steps = ).",
                arg="steps_per_epoch",
            )
        if asked >= passed:
            if asked > passed:
                batches = count_of(passed, "batch")
                self.notes.append(f"An epoch is a pass of {batches}: it has no {asked:,} steps.")
            return None
        if passed % asked and self.spec.schedule is not None:
            raise SpecError(
                f"A pass over the rows is {passed:,} steps, which epochs of {asked:,} do not share "
                "equally, and `schedule` needs epochs of equal length.",
                hint="Use a divisor, or leave `schedule` out.",
                arg="steps_per_epoch",
            )
        return asked

    def _resume(self, state: TrainingState) -> None:
        apply_snapshot(self.model, state.snapshot)
        self.progress, self.resumed = Progress.of_state(state), state
        kept = state.extra.get("micro", self.microbatch_size)
        self.microbatch_size = min(self.microbatch_size, kept)
        self.notes.append(explain_resumption(state))

    def _open_engines(self) -> tuple[Engines, EngineAutotuner]:
        size = self.microbatch_size
        engines = self.strategy.open_training(
            self.model,
            self.plan.batch_size,
            self.device,
            microbatch_size=None if size >= self.plan.batch_size else size,
            watch=self.health.watch,
            averages=self.callback_manager.averages,
        )
        candidates, reason = choose_candidates(self.facts)
        if self.facts.requested not in ("auto", self.spec.engine):
            reason = "as before the interruption"
        steps, left = self.loader.steps or EXPECTED_STEPS, self.spec.epochs - self.progress.epoch
        short = not self.loader.exact or self.plan.last_batch < self.plan.batch_size
        short = short and fixed_rows(self.model) is None
        engines.expect(steps * self.spec.epochs, short, self.data.variable_batch_size)
        return engines, open_autotuner(engines, candidates, steps * (left or 1), reason, self.facts)

    # Through Keras --------------------------------------------------------------------------------

    def _fit(self) -> None:
        hook = runtime.keras().callbacks.LambdaCallback
        first = hook(on_epoch_end=lambda epoch, logs: self._look())
        last = hook(
            on_epoch_begin=lambda epoch, logs: self._begin_epoch(epoch),
            on_epoch_end=lambda epoch, logs: self._end_epoch(logs),
        )
        asked = hooks.build_function_callback(self.functions)
        self.model.steps_per_execution = self.together if self.facts.batch_hook else 1
        freq = self.spec.validation_freq
        with warnings.catch_warnings():  # Keras warns so after an epoch of unknown length
            warnings.filterwarnings("ignore", "Your input ran out of data")
            self.model.fit(
                keras_steps(self.keras_steps.count),
                epochs=self.progress.epoch if self.callback_manager.stopped else self.spec.epochs,
                initial_epoch=self.progress.epoch,
                verbose=0,
                shuffle=False,
                callbacks=[first, *self.callbacks, *self.callback_manager.surround(asked, last)],
                validation_data=None if self._validation_loop() is None else keras_steps(1),
                validation_freq=list(freq) if isinstance(freq, tuple) else freq,
            )
        if asked.hooks.stopped == "interrupted" or self.stopped == "completed":
            early = self.progress.epoch < self.spec.epochs
            self.stopped = asked.hooks.stopped or ("early" if early else "completed")
            self.reason = asked.hooks.reason or self.callback_manager.reason
        self.notes += self.callback_manager.explain()

    def _validates(self) -> bool:
        held = self.data if self.validation is None else self.validation
        return held.has_rows("validation" if self.validation is None else "all")

    def _validation_loop(self) -> EvaluationLoop | None:
        source = self.data if self.validation is None else self.validation
        part = "validation" if self.validation is None else "all"
        if not self._validates():
            return None
        self.notes += explain_test_hook(self.callbacks)
        size, why = self.spec.validation_batch_size, ""
        if size is None:
            own = self.terms.validation_rows or self.plan.batch_size
            size, why = choose_batches(self.model, source, part, own)
        if why:
            note = f"Validation rows are evaluated in batches of {size:,}, as by Keras: {why}."
            self.notes.append(note)
        loop = EvaluationLoop(
            self.model,
            source,
            part,
            self.device,
            self.spec.epochs,
            requested=self.spec.engine,
            rows_a_batch=size,
            first=self._count_validated(source),
            idle=self._idle,
            before=self.callback_manager.show_averages,
            strategy=self.strategy,
        )
        tensor_ops.set_function(self.model, "test", loop)
        return loop

    def _count_validated(self, source: Dataset) -> int | None:
        """Returns how many of the first rows are validated, or None for all.

        Raises:
            SpecError: for rows in sequence, or with replicas, which share the rows otherwise.
        """
        steps = self.spec.validation_steps
        if steps is None:
            return None
        if not isinstance(source, MapDataset) or self.strategy.shares is not None:
            raise SpecError(
                "`validation_steps` needs rows by number on one device.",
                hint="Use `validation = gpu_dataset(f, steps = )`.",
                arg="validation_steps",
            )
        return steps * (self.spec.validation_batch_size or self.plan.batch_size)

    def _begin_epoch(self, epoch: int) -> None:
        self.keras_steps.done, self._began = 0, time.perf_counter()
        self.notes += self.progress.skip_to(epoch)
        if self.resumed is not None:  # here, because Keras has just reset the metrics
            apply_snapshot(self.model, self.resumed.snapshot)
            if not self.resumed.position:
                self.model.reset_metrics()  # they belong to the epoch before
            self.resumed = None
        self.health.begin_epoch(self.progress.epoch, self.progress.done)
        blocks, exact = self.loader.epoch(epoch, epoch + 1 < self.spec.epochs), self.loader.exact
        self.runner.begin(self.strategy.agreement.keep_step(blocks, exact), self.progress.done)

    def _rewind(self) -> tuple[Iterator[Block], int]:
        """Returns the epoch's blocks from its start, after restoring the model."""
        if not self.health.rewind():
            raise self.explain_memory()
        return self.loader.epoch(self.progress.epoch), self.progress.done

    def _run_keras_step(self, iterator: Any) -> Mapping[str, Any]:
        """Keras' train function: runs the batches up to this Keras step's share of the epoch.

        Raises:
            NonFiniteLoss: if the loss is no longer finite.
        """
        logs = self.terms.run(self.keras_steps.advance, self.health.restore)
        if self.keras_steps.done == self.keras_steps.count or self.keras_steps.each:
            self.health.check()
        # No batch is left where the checkpoint was made after the epoch's last batch.
        return logs or self.model.get_metrics_result()

    def _idle(self) -> None:
        """Handles a user's interrupt while rows are waited for."""
        if self.listener.due and self._emit("waiting", {}):
            raise KeyboardInterrupt

    def _after_call(self, position: int, logs: Mapping[str, Any]) -> bool:
        due = self.strategy.agreement.agree("call", save=self.saver.due(), emit=self.listener.due)
        if due["save"] and not self._before_tail():
            self.health.check(within=True)
            self._save(within=True)
        if not due["emit"]:
            return bool(self.model.stop_training)
        self.health.check(within=True)
        self._emit("progress", read_metrics({k: v for k, v in logs.items() if k == "loss"}))
        stop = self._agree_stop("stop")
        if self.stopped == "interrupted" and not self._before_tail():
            self._save(within=True)  # before validation, which resets the metrics
        return stop

    def _agree_stop(self, kind: str) -> bool:
        """Whether the training is to stop, because at least one of its processes asks for it."""
        stop, interrupted = bool(self.model.stop_training), self.stopped == "interrupted"
        wishes = self.strategy.agreement.agree(kind, stop=stop, interrupted=interrupted)
        self.stopped = "interrupted" if wishes["interrupted"] else self.stopped
        self.model.stop_training = wishes["stop"]
        return wishes["stop"]

    def _before_tail(self) -> bool:
        """Whether only the short last batch is left; no checkpoint is made before it.

        Keras retraces for any batch size when it sees a second one; results differ in the last bit.
        """
        steps, short = self.loader.steps or 0, self.plan.last_batch < self.plan.batch_size
        return short and self.runner.position == steps - 1

    def _look(self) -> None:
        """Runs first at an epoch's end: takes its time and rate, and shows the averages."""
        self._took_s = time.perf_counter() - self._began
        self._last_rate = read_rate(self.model, -1)
        self.callback_manager.show_averages()

    def _end_epoch(self, logs: Mapping[str, Any] | None) -> None:
        self.callback_manager.hide_averages()
        metrics = read_metrics(logs)
        self.progress.add(metrics, self._took_s, self.runner.rows, self._last_rate)
        whole = self.loader.exact and self.runner.position == self.loader.steps
        if whole or not self.runner.stopped:  # otherwise a resumption runs the rest
            self._save()
        self._emit("epoch", metrics)
        self._agree_stop("epoch")

    def _save(self, within: bool = False) -> None:
        """Saves a checkpoint, within an epoch or between two."""
        if not self.saver.enabled:
            return
        done, choice = self.progress, self.runner.chooser.choice
        spent_s = done.spent_s + time.perf_counter() - self._began if within else 0.0
        state = done.to_state(
            take_snapshot(self.model),
            position=self.runner.position if within else 0,
            rows=self.runner.rows if within else 0,
            engine=choice.engine if choice else "",
            keepers=self.callback_manager.get_state(),
            extra={"micro": self.microbatch_size, "spent_s": spent_s},
        )
        self.saver.save(state)
        self.saver.write_history(self._report())

    def _emit(self, kind: str, metrics: dict[str, Value]) -> bool:
        """Reports an event to the listener; returns whether the training is to stop."""
        epoch = self.progress.epoch + (kind != "epoch")
        step, steps = self.runner.position, self.loader.steps
        if self.listener.emit(kind, epoch, step, steps, split_components(metrics)):
            self.stopped = "interrupted"
            self.model.stop_training = True
        return bool(self.model.stop_training)

    # What may go wrong ----------------------------------------------------------------------------

    def _back_off(self, error: BaseException) -> tuple[Engines, EngineAutotuner]:
        """Returns engines that take half as many rows at once; raises if that is impossible."""
        splits = self.strategy.replicas == 1 and can_split(self.model)
        if self.spec.on_oom == "stop" or self.microbatch_size <= 1 or not splits:
            raise self.explain_memory() from error
        self.microbatch_size = -(-self.microbatch_size // 2)
        gc.collect()
        self.notes.append(
            f"{self.device} ran out of memory: batches of {count_of(self.plan.batch_size, 'row')} "
            f"go through the model {self.microbatch_size:,} at a time, and their gradients are "
            "added up."
        )
        return self._open_engines()

    def explain_memory(self) -> OutOfMemoryError:
        """Returns the error of a training that does not fit into memory."""
        size = getattr(getattr(self, "plan", None), "batch_size", self.batch_size)
        part = self.microbatch_size
        halved = f", {count_of(part, 'row')} at a time" if part not in (0, size) else ""
        own = "" if can_split(self.model) else ", and its own train_step() cannot be split"
        hint = 'Use a smaller `batch_size` or model, or gpu_dataset(cache = "host").'
        return explain_exhaustion(self.device, size, hint, halved + own)

    def _give_up(self, why: str) -> None:
        self.stopped, self.reason = "non_finite", why
        which = self.health.restore()
        if self.callback_manager.keeps_best:
            self.callback_manager.settle()
            which = f"of its best epoch, {self.callback_manager.best_epoch}"
        self.notes.append(explain_stop(why, which))

    # After the last step --------------------------------------------------------------------------

    def _report(self) -> FitReport:
        outcome = Outcome(
            model=self.model,
            device=self.device,
            strategy=self.strategy,
            progress=self.progress,
            plan=self.loader.settle(self.plan),
            engine=self.runner.chooser.finish(),
            elapsed_s=time.perf_counter() - self._started,
            wait_s=self.loader.wait_s,
            microbatch_size=self.microbatch_size,
            skipped_steps=self.health.skipped,
            best_epoch=self.callback_manager.best_epoch,
            stopped=self.stopped,
            why=self.reason,
            rate_scaling=self.spec.rate_scaling,
            notes=(*self.strategy.explain(), *self.notes, *self.saver.notes),
            checkpoint=self.saver.saved,
            unsaved=self.saver.unsaved,
            tensorboard=self.callback_manager.folder,
        )
        return summarise(outcome)
