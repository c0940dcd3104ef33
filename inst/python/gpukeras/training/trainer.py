"""Runs one training: opens what it needs, runs the loop, and reports.

`Trainer` is what was asked for, `Training` what is open meanwhile.
"""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from operator import truediv
from typing import Any

import numpy as np

from gpukeras.backend import devices, keras_private, runtime, tensor_ops
from gpukeras.backend.oom import memory_errors
from gpukeras.checkpoint.manager import open_saver
from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.errors import GpuKerasError, RefusedRowsError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.metric_values import read_metrics
from gpukeras.core.options import FitSpec
from gpukeras.core.preemption import PreemptionNotice
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.loader.loader import Block, DataLoader, open_loader
from gpukeras.data.plan import PipelinePlan
from gpukeras.distributed.strategy import Strategy
from gpukeras.engine.autotune import EngineAutotuner, EngineFacts, choose_candidates
from gpukeras.engine.autotune_cache import open_autotuner
from gpukeras.engine.batch_dependence import choose_batches
from gpukeras.engine.batch_rows import fixed_rows, model_device
from gpukeras.engine.engine_facts import explain_test_hook, read_engine_facts
from gpukeras.engine.engines import Engines
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.train_step import why_not_split
from gpukeras.models import compatibility, model_recipes
from gpukeras.models.calibration import tie_calibration
from gpukeras.models.families.keras_classes import family_layer
from gpukeras.models.state import apply_snapshot, read_held, take_snapshot
from gpukeras.models.training_rows import tie_training_rows
from gpukeras.training.batch_size import explain_size, plan_batches
from gpukeras.training.callbacks import epochs as own
from gpukeras.training.callbacks.functions import FunctionHooks, Functions, end_callbacks
from gpukeras.training.callbacks.keras_class import as_callback
from gpukeras.training.callbacks.manager import open_callback_manager
from gpukeras.training.evaluate import EvaluationLoop
from gpukeras.training.keras_functions import build_on
from gpukeras.training.keras_terms import KerasTerms
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.loop import Calls, limit_epochs, limit_steps, run_epochs
from gpukeras.training.memory import MemoryUse
from gpukeras.training.nan_guard import DivergenceGuard, NonFiniteLoss, explain_stop
from gpukeras.training.progress import Progress
from gpukeras.training.report import FitReport, explain_rate

EXPECTED_STEPS = 500  # assumed for an epoch of unknown length, to decide which engines are tried


@dataclass(frozen=True)
class Trainer:
    """What a training is asked for.

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
        notice: Whether this process is asked to end.
    """

    model: Model
    data: Dataset
    validation: Dataset | None
    spec: FitSpec
    batch_size: int | str | None
    callbacks: Sequence[Any]
    functions: Functions
    listener: ProgressReporter
    strategy: Strategy = field(default_factory=Strategy)
    terms: KerasTerms = field(default_factory=KerasTerms)
    notice: PreemptionNotice = field(default_factory=PreemptionNotice)

    def run(self) -> FitReport:
        """Trains and returns the report."""
        memory = MemoryUse(self.model, self.batch_size)
        with ExitStack() as held:
            held.enter_context(memory_errors(memory.explain))
            # BackupAndRestore stores here the epoch at which a training resumes.
            keras_private.set_initial_epoch(self.model, None)
            held.callback(keras_private.set_initial_epoch, self.model, None)
            training = Training(self, memory, held)
            agreement = self.strategy.agreement
            try:
                training.run()
            except KeyboardInterrupt as error:
                training.progress.stopped = "interrupted"
                agreement.leave(error)
                training.manager.settle()
            except NonFiniteLoss as error:
                training.give_up(str(error))
            except Exception as error:
                if self.terms.failed_at_first:
                    training.guard.restore()
                elif isinstance(error, RefusedRowsError) and not self.terms.continue_on_nan:
                    training.guard.start_again()
                raise  # as in Keras, updates before the error stay
            report = training.report()
            training.saver.write_history(report)
            return report

    @property
    def validated(self) -> tuple[Dataset, str] | None:
        """The dataset of the rows to validate on, and their part of it; None without."""
        part = "validation" if self.validation is None else "all"
        source = self.data if self.validation is None else self.validation
        return (source, part) if source.has_rows(part) else None

    def count_validated(self, source: Dataset, batch_size: int) -> int | None:
        """Returns how many of the first rows are validated, or None for all.

        Args:
            source: Their dataset.
            batch_size: Rows per batch of the training.

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
        return steps * (self.spec.validation_batch_size or batch_size)


# Before the first step ----------------------------------------------------------------------------


def open_rows(
    asked: Trainer, memory: MemoryUse, notes: list[str], idle: Callable[[], None]
) -> tuple[PipelinePlan, DataLoader]:
    """Builds the model on its rows, and opens their loader; returns it and its plan.

    Args:
        asked: What was asked for.
        memory: Learns what the device has to hold.
        notes: Gets notes for the user.
        idle: Called now and then while rows are waited for.
    """
    model = asked.model
    data = asked.data
    size = asked.batch_size
    strategy = asked.strategy
    build_on(model, data, size)
    memory.device = strategy.place(model_device(model))
    memory.peak_before = devices.reset_peak(memory.device)
    plan = plan_batches(model, data, memory.device, size)
    notes += explain_size(plan, model, data, size)
    plan = strategy.fit_plan(plan, data, size)
    memory.batch_size = memory.microbatch_size = plan.batch_size
    steps = check_steps(asked, plan, notes)
    check, first = partial(compatibility.check_fit, model), asked.spec.initial_epoch
    loader = open_loader(
        data, plan, check, idle, steps_per_epoch=steps, initial_epoch=first, shares=strategy.shares
    )
    return (replace(plan, steps_per_epoch=steps) if steps else plan), loader


def check_steps(asked: Trainer, plan: PipelinePlan, notes: list[str]) -> int | None:
    """Returns the steps of an epoch that is a part of a pass, or None for whole passes.

    Args:
        asked: What was asked for.
        plan: The pipeline plan.
        notes: Gets a note where an epoch is a whole pass all the same.

    Raises:
        SpecError: for rows in sequence, or with a schedule if an epoch would be shorter.
    """
    steps, passed = limit_steps(asked.spec.steps_per_epoch), plan.steps_per_epoch
    if steps is None:
        return None
    if not isinstance(asked.data, MapDataset):
        raise SpecError(
            "`steps_per_epoch` comes too late: `data` gives its rows in sequence.",
            hint="Use gpu_dataset(steps = ).",
            arg="steps_per_epoch",
        )
    if steps >= passed:
        if steps > passed:
            batches = count_of(passed, "batch")
            notes.append(f"An epoch is a pass of {batches}: it has no {steps:,} steps.")
        return None
    if passed % steps and asked.spec.schedule is not None:
        raise SpecError(
            f"A pass over the rows is {passed:,} steps, which epochs of {steps:,} do not share "
            "equally, and `schedule` needs epochs of equal length.",
            hint="Use a divisor, or leave `schedule` out.",
            arg="steps_per_epoch",
        )
    return steps


def tie_data(model: Model, data: Dataset) -> None:
    """Ties to a model what it is trained on, which predictions and summaries ask for."""
    known = model_recipes.recipe_of(model)
    model_recipes.tie_recipe(model, data.recipe)
    if known is not data.recipe and (known is not None or data.applied):
        model_recipes.forget_absent(model)  # these rows may have what those of the recipe lacked
    tie_training_rows(model, data)
    tie_calibration(model, None)  # it was that of the weights before
    forget_baseline(model)


def forget_baseline(model: Model) -> None:
    """Forgets the baseline hazard of a model of Cox, which is that of the weights before.

    `fit.fill_baseline()` estimates it where a training has ended.
    """
    layer = family_layer(model)
    if layer is not None and layer.family.name == "cox":
        hazard = layer.own["hazard"]
        hazard.assign(np.zeros(hazard.shape, np.float32))


# Training -----------------------------------------------------------------------------------------


class Training:
    """A training that is open: its rows, checkpoints, callbacks and engines.

    Attributes:
        asked: What was asked for.
        memory: What the device has to hold.
        progress: How far it is.
        plan: How the rows reach the device.
        loader: Makes blocks of them.
        saver: Writes checkpoints.
        state: The checkpoint's state that it resumes from, or None.
        manager: Rates, clipping, averages, early stopping, TensorBoard.
        preemption: Ends the training where its process is asked to end.
        guard: Checks the losses.
        events: Reports the progress.
        facts: What decides on the engines.
        runner: Runs an epoch's blocks.
        history: Keras' own history.
    """

    def __init__(self, asked: Trainer, memory: MemoryUse, held: ExitStack) -> None:
        """Opens it.

        Args:
            asked: What was asked for.
            memory: Learns what the device has to hold.
            held: Holds what is to be closed.
        """
        model = asked.model
        spec = asked.spec
        strategy = asked.strategy
        self._started, agreement = time.perf_counter(), strategy.agreement
        self.asked, self.memory = asked, memory
        begun = spec.initial_epoch
        self.progress = progress = Progress(epoch=begun, resumed=begun)
        self.events = as_callback(own.Events, asked.listener, progress, agreement)
        self.events.set_model(model)
        try:
            self.plan, self.loader = open_rows(asked, memory, progress.notes, self.events.idle)
        except GpuKerasError as error:
            agreement.refuse("fit", error)
            raise
        agreement.compare(model, asked.data, self.plan, spec)
        self.saver = held.enter_context(open_saver(model, asked.data, self.plan, spec))
        self.state = state = agreement.share_state(self.saver.resume(), model)
        if state is not None:
            apply_snapshot(model, state.snapshot)
            progress.resume(state)
            memory.resume(state.extra.get("micro"))
        held.enter_context(strategy.hold(model))
        factor = strategy.scale_rate(spec.rate_scaling)
        skips = spec.validation_freq != 1 and asked.validated is not None
        manager = open_callback_manager(
            model, spec, progress, self.loader, state=state, rate_factor=factor, skips=skips
        )
        self.manager = held.enter_context(manager)
        stops = not asked.terms.continue_on_nan
        self.guard = DivergenceGuard(model, self.manager.averages, stops=stops)
        self.facts = self._read_facts()
        agree, by_batch = agreement.agree_time, asked.data.variable_batch_size
        self.runner = EpochLoop(
            *self.open_engines(), self.back_off, self.rewind, self.loader, agree, by_batch
        )
        self.events.runner = self.runner
        self.preemption = self.open_preemption()
        held.callback(self.runner.end)
        kind = runtime.keras().callbacks.History  # Keras' own, unless the user gives one
        self.history = (
            [] if any(isinstance(callback, kind) for callback in asked.callbacks) else [kind()]
        )
        model.history = None  # not that of an earlier training, if this one does not start

    def _read_facts(self) -> EngineFacts:
        asked = self.asked
        device = self.memory.device
        wanted = self.asked.spec.engine
        if self.state and wanted in ("auto", "repeatable"):
            wanted = self.state.engine or wanted
        size = self.plan.batch_size
        return replace(
            read_engine_facts(asked.model, wanted, asked.callbacks, size, device),
            text=asked.data.recipe.features.has_texts,
            replicas=asked.strategy.replicas,
            as_keras=asked.terms.continue_on_nan and device.startswith("CPU"),
        )

    def run(self) -> None:
        """Trains, and tells how the training ended."""
        asked = self.asked
        progress = self.progress
        validation = self.open_validation()
        functions = as_callback(FunctionHooks, asked.functions)
        calls = Calls(
            self.runner,
            self.loader,
            self.open_blocks,
            together=asked.model.steps_per_execution if self.facts.batch_hook else None,
            expected=self.loader.steps,
            record=asked.terms.run,
            check=lambda ends: self.guard.check(weights=ends),
        )
        tie_data(asked.model, asked.data)  # not before: a training may fail to begin
        asked.terms.began = True
        with own.keeping_backups(
            asked.callbacks, lambda: "interrupted" in (progress.stopped, functions.stopped)
        ):
            run_epochs(
                asked.model,
                calls,
                self.in_order(functions),
                epochs=progress.epoch if self.manager.stopped else limit_epochs(asked.spec.epochs),
                initial_epoch=progress.epoch,
                evaluate=None if validation is None else validation.run,
                validation_freq=asked.spec.validation_freq,
                params=asked.terms.params,
            )
        if functions.stopped == "interrupted" or progress.stopped == "completed":
            early = progress.epoch < asked.spec.epochs
            progress.stopped = functions.stopped or ("early" if early else "completed")
            progress.reason = functions.reason or self.manager.reason
        progress.notes += self.manager.explain()

    def in_order(self, functions: Any) -> list[Any]:
        """Returns all callbacks of the training, in the order in which they run.

        Args:
            functions: The callback of the user's functions.
        """
        progress = self.progress
        runner = self.runner
        events = self.events
        checkpoints, preemption = self.preemption.checkpoints, self.preemption
        measured = as_callback(own.Measurement, progress, self.manager)
        resumption = as_callback(own.Resumption, progress, self.state)
        # What others do where an epoch begins, such as to set its rate, is in a state within it,
        # and not in one between two epochs.
        within = self.state is not None and self.state.position > 0
        return [
            measured,  # an epoch's time and rate; shows the averages to all that follow
            *([] if within else [resumption]),
            *self.asked.callbacks,
            *self.manager.callbacks,  # early stopping and the best weights, rates on a plateau
            functions,  # R functions
            *([resumption] if within else []),
            runtime.keras().callbacks.LambdaCallback(
                on_epoch_begin=lambda *_: self.guard.begin_epoch(progress.epoch, progress.done)
            ),  # copies the state, to which a training returns from a loss that is no number
            as_callback(own.Pauses, self.guard, checkpoints, events, preemption),
            as_callback(own.Recording, measured, runner),
            checkpoints,
            events,  # progress and interrupts
            preemption,  # signals that ask the process to end
            *([self.manager.board] if self.manager.board else []),  # reads an epoch's figures
            *self.history,
        ]

    def open_validation(self) -> EvaluationLoop | None:
        """Opens the rows to validate on, or returns None."""
        asked = self.asked
        if asked.validated is None:
            return None
        source, part = asked.validated
        self.progress.notes += explain_test_hook(asked.callbacks)
        size, why = asked.spec.validation_batch_size, ""
        if size is None:
            keras_size = asked.terms.validation_rows or self.plan.batch_size
            size, why = choose_batches(asked.model, source, part, keras_size)
        if why:
            note = f"Validation rows are evaluated in batches of {size:,}, as by Keras: {why}."
            self.progress.notes.append(note)
        return EvaluationLoop(
            asked.model,
            source,
            part,
            self.memory.device,
            asked.spec.epochs,
            requested=asked.spec.engine,
            rows_a_batch=size,
            first=asked.count_validated(source, self.plan.batch_size),
            idle=self.events.idle,
            before=self.manager.show_averages,
            after_call=self.preemption.after_validation_call,
            strategy=asked.strategy,
        )

    def open_preemption(self) -> Any:
        """Returns the callback that ends the training where its process is asked to end."""
        short = self.plan.last_batch < self.plan.batch_size
        saves = as_callback(
            own.Checkpoints, self.saver, self.runner, self.loader, self.read, self.save, short
        )
        agreement = self.asked.strategy.agreement
        return as_callback(own.Preemption, self.asked.notice, saves, agreement, self.state)

    def open_blocks(self, epoch: int) -> tuple[Iterator[Block], int]:
        """Returns the blocks of an epoch, and the number of its batches that were done before."""
        blocks = self.loader.epoch(epoch, epoch + 1 < self.asked.spec.epochs)
        agreement = self.asked.strategy.agreement
        return agreement.keep_step(blocks, self.loader.exact), self.progress.done

    # Engines and memory ---------------------------------------------------------------------------

    def open_engines(self) -> tuple[Engines, EngineAutotuner]:
        """Returns the engines, and what decides among them."""
        asked = self.asked
        loader = self.loader
        size = self.memory.microbatch_size
        whole = self.plan.batch_size
        device = self.memory.device
        watch = self.guard.watch
        part, averages = None if size >= whole else size, self.manager.averages
        engines = asked.strategy.open_training(
            asked.model, whole, device, microbatch_size=part, watch=watch, averages=averages
        )
        candidates, reason = choose_candidates(self.facts)
        if self.facts.requested not in ("auto", asked.spec.engine):
            reason = "as before the interruption"
        steps, left = loader.steps or EXPECTED_STEPS, asked.spec.epochs - self.progress.epoch
        short = not loader.exact or self.plan.last_batch < self.plan.batch_size
        short = short and fixed_rows(asked.model) is None
        engines.expect(steps * asked.spec.epochs, short, asked.data.variable_batch_size)
        return engines, open_autotuner(engines, candidates, steps * (left or 1), reason, self.facts)

    def back_off(self, error: BaseException) -> tuple[Engines, EngineAutotuner]:
        """Returns engines that take half as many rows at once; raises if that is impossible."""
        asked, memory = self.asked, self.memory
        splits = asked.strategy.replicas == 1 and not why_not_split(asked.model)
        if asked.spec.on_oom == "stop" or memory.microbatch_size <= 1 or not splits:
            raise memory.explain() from error
        self.progress.notes.append(memory.halve())
        gc.collect()
        return self.open_engines()

    def rewind(self) -> tuple[Iterator[Block], int]:
        """Returns the epoch's blocks from its start, after restoring the model."""
        if not self.guard.rewind():
            raise self.memory.explain()
        return self.loader.epoch(self.progress.epoch), self.progress.done

    # What is kept and told ------------------------------------------------------------------------

    def read(self, within: bool, held: Mapping[str, Any] | None = None) -> TrainingState:
        """Returns the state for a checkpoint, within an epoch or between two.

        Args:
            within: Whether the epoch goes on.
            held: The model's state, see `hold_state()`; None for what it is now.
        """
        done = self.progress
        runner = self.runner
        choice = self.runner.chooser.choice
        self.manager.hide_averages()  # which a validation shows
        spent_s = done.spent_s + time.perf_counter() - done.began if within else 0.0
        return done.to_state(
            take_snapshot(self.asked.model) if held is None else read_held(held),
            position=runner.position if within else 0,
            rows=runner.rows if within else 0,
            engine=choice.engine if choice else "",
            keepers=self.manager.get_state(),
            extra={"micro": self.memory.microbatch_size, "spent_s": spent_s},
        )

    def save(self, state: TrainingState) -> None:
        """Saves a checkpoint, and the report so far."""
        self.saver.save(state)
        self.saver.write_history(self.report())

    def give_up(self, why: str) -> None:
        """Restores weights from before a loss was not finite, and ends the user's callbacks."""
        model, progress = self.asked.model, self.progress
        logs = {"loss": math.nan, **read_metrics(model.get_metrics_result())}
        progress.stopped, progress.reason = "non_finite", why
        which = self.guard.restore()
        self.manager.settle()
        if self.manager.keeps_best:
            which = f"of its best epoch, {self.manager.best_epoch}"
        progress.notes.append(explain_stop(why, which))
        told = [*self.asked.callbacks, *self.history]
        end_callbacks(told, progress.epoch, self.runner.position, logs)

    def report(self) -> FitReport:
        """Returns the report so far."""
        asked = self.asked
        done = self.progress
        memory = self.memory
        strategy, plan = asked.strategy, self.loader.settle(self.plan)
        engine, elapsed_s = self.runner.chooser.finish(), time.perf_counter() - self._started
        freq = asked.spec.validation_freq
        reasons = {"engine": engine.reason, "batch_size": plan.batch_reason, "rows": plan.reason}
        if strategy.replicas > 1:
            rate = explain_rate(asked.spec.rate_scaling, strategy.replicas)
            reasons["learning_rate"] = rate
        if done.reason:
            reasons["stopped"] = done.reason
        return FitReport(
            history=done.history,
            learning_rate=done.learning_rate,
            epochs=done.epoch,
            rows=sum(done.epoch_rows),
            elapsed_s=elapsed_s,
            epoch_s=done.epoch_s,
            epoch_rows=done.epoch_rows,
            samples_per_s=max(map(truediv, done.epoch_rows, done.epoch_s), default=0.0),
            input_share=min(1.0, self.loader.wait_s / elapsed_s),
            device=memory.device,
            variables=dict(Counter(tensor_ops.variable_devices(asked.model))),
            precision=asked.model.dtype_policy.name,
            peak_bytes=devices.peak_bytes(memory.device, memory.peak_before),
            engine=engine,
            micro_batch=memory.microbatch_size // strategy.replicas,
            replicas=strategy.replicas,
            workers=strategy.workers,
            devices=strategy.devices or (memory.device,),
            skipped_steps=self.guard.skipped,
            resumed_epochs=done.resumed,
            best_epoch=self.manager.best_epoch,
            validation_freq=freq if isinstance(freq, int) else tuple(freq),
            stopped=done.stopped,
            notes=(*strategy.explain(asked.model), *done.notes, *self.saver.notes),
            reasons=reasons,
            checkpoint=self.saver.saved,
            unsaved=self.saver.unsaved,
            tensorboard=self.manager.folder,
            plan=plan,
        )
