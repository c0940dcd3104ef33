"""Trains a model twice from the same state, and names the first thing that differs.

    two trainings --differ--> rows of two epochs --equal--> steps, each twice from one state
        --step k differs--> outputs of layers --equal--> gradients --equal--> optimizer

Everything is compared bit by bit. Before each of two runs, the model's state and the random
generators of Python and NumPy are the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import devices, runtime
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.options import ENGINES, Spec, check_choice, check_count, option
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import open_loader, sample_rows
from gpukeras.diagnostics.layer_runs import Difference, compare_layers
from gpukeras.engine.batch_rows import model_device
from gpukeras.models import model_checks
from gpukeras.models.state import Snapshot, apply_snapshot, take_snapshot
from gpukeras.system import environment
from gpukeras.training.fit import fit
from gpukeras.training.history_registry import history_of, keep_history
from gpukeras.training.keras_functions import jit_policy
from gpukeras.training.model_guard import untouched
from gpukeras.training.report import FitReport


@dataclass(frozen=True)
class ReproduceSpec(Spec):
    """Options of the comparison.

    Args:
        epochs: Epochs of each of the two trainings.
        steps: Steps that are looked at, at most, to find the first one that differs.
        engine: The engine of the trainings; "auto" is "repeatable", since engines that are measured
            may differ between the two.
    """

    epochs: int = option(2, check_count)
    steps: int = option(100, check_count)
    engine: str = option("auto", check_choice, ENGINES)


@dataclass(frozen=True, kw_only=True)
class Reproduction(Difference):
    """What two trainings from the same state had in common, and the first difference.

    Args:
        equal: Whether metrics and weights were the same, bit by bit.
        sentence: The result in a sentence.
        epoch: The first epoch, from 1, whose metrics differ; 0 if none does.
        metric: The first metric that differs there, or "".
        values: Its values in the two trainings.
        largest: The largest difference of a weight after the two trainings.
        epochs: Epochs of each training.
        settings: Settings that decide whether trainings repeat.
    """

    equal: bool
    sentence: str
    epoch: int
    metric: str
    values: tuple[float, ...]
    largest: float
    epochs: int
    settings: tuple[RunSetting, ...]


def reproduce(model: Model, data: Dataset, options: Mapping[str, Any]) -> Reproduction:
    """Trains a model twice, compares, and restores it.

    Args:
        model: A compiled Keras model.
        data: The dataset.
        options: Fields of `ReproduceSpec`.

    Raises:
        SpecError, DataError, ModelError: for input that does not fit.
    """
    spec = ReproduceSpec.from_dict(options)
    model_checks.check_model(model)
    model_checks.check_rows(model, data, fits=True)
    before = history_of(model)
    with untouched(model, partial(sample_rows, data)):
        start = take_snapshot(model)
        with same_random() as again:
            one, state_one = _train(model, data, spec)
            again()
            apply_snapshot(model, start)
            other, state_other = _train(model, data, spec)
        found = compare_histories(one.history, other.history)
        largest = largest_difference(state_one, state_other)
        first = Difference() if not found[0] and largest == 0 else _search(model, data, spec, start)
    if before is not None:
        keep_history(model, before)
    return describe(spec, found, largest, first, read_run_settings(model, data))


def _train(model: Model, data: Dataset, spec: ReproduceSpec) -> tuple[FitReport, Snapshot]:
    engine = "repeatable" if spec.engine == "auto" else spec.engine
    report = fit(model, data, {"epochs": spec.epochs, "engine": engine})
    return report, take_snapshot(model)


@contextmanager
def same_random() -> Iterator[Any]:
    """Yields a function that puts Python's and NumPy's random generators back to the start."""
    python, numpy = random.getstate(), np.random.get_state()

    def again() -> None:
        random.setstate(python)
        np.random.set_state(numpy)

    try:
        yield again
    finally:
        again()


# Comparing ----------------------------------------------------------------------------------------


def compare_histories(
    one: Mapping[str, Sequence[Any]], other: Mapping[str, Sequence[Any]]
) -> tuple[int, str, tuple[float, ...]]:
    """Returns the first epoch, from 1, with different metrics, the metric and its two values.

    The epoch is 0 if all are equal, bit by bit; NaN equals NaN.
    """
    for epoch, _ in enumerate(next(iter(one.values()), ())):
        for name, values in one.items():
            pair = values[epoch], other[name][epoch]
            if not np.array_equal(*pair, equal_nan=True):
                return epoch + 1, name, tuple(float(np.mean(value)) for value in pair)
    return 0, "", ()


def largest_difference(one: Snapshot, other: Snapshot) -> float:
    """Returns the largest difference of two states' weights; infinity where one is not finite."""
    found = 0.0
    for name, values in one.arrays.items():
        if np.array_equal(values, other.arrays[name], equal_nan=values.dtype.kind == "f"):
            continue
        gap = np.abs(values.astype(np.float64) - other.arrays[name].astype(np.float64))
        found = max(found, float(np.max(gap)) if np.isfinite(gap).all() else float("inf"))
    return found


def same_values(one: Any, other: Any) -> bool:
    """Whether two structures of arrays or tensors are equal, bit by bit."""
    flat = runtime.tree().flatten
    pairs = list(zip(flat(one), flat(other), strict=True))
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


# Searching ----------------------------------------------------------------------------------------


def _search(model: Model, data: Dataset, spec: ReproduceSpec, start: Snapshot) -> Difference:
    """Finds the first batch that differs, else the first step, else its layer."""
    with same_random() as again:
        batches = read_batches(model, data, spec.steps)
        again()
        others = read_batches(model, data, spec.steps)
    for number, (batch, other) in enumerate(zip(batches, others, strict=False), 1):
        if not same_values(batch, other):
            return Difference("rows", data.source_kind, step=number)
    if len(batches) != len(others):
        return Difference("rows", data.source_kind, step=min(len(batches), len(others)) + 1)
    apply_snapshot(model, start)
    with jit_policy(model):
        for number, batch in enumerate(batches, 1):
            before = take_snapshot(model)
            if not _steps_are_equal(model, batch, before):
                apply_snapshot(model, before)
                return compare_layers(model, batch, before, number)
    return Difference("unknown")


def read_batches(model: Model, data: Dataset, most: int) -> list[Any]:
    """Returns the first batches of the first epoch, as the model takes them."""
    loader = open_loader(data, data.plan(model_device(model)))
    found: list[Any] = []
    blocks = loader.epoch(0)
    for block in blocks:
        for place in range(block.batches):
            found.append(block.arrays if block.tail else block.batch(place))
            if len(found) == most:
                blocks.close()
                return found
    return found


def _steps_are_equal(model: Model, batch: Any, before: Snapshot) -> bool:
    """Runs a step twice from the same state, which the second one leaves changed."""
    states = []
    with same_random() as again:
        for _ in range(2):
            again()
            apply_snapshot(model, before)
            logs = model.train_on_batch(*batch) if isinstance(batch, tuple) else None
            if logs is None:
                logs = model.train_on_batch(batch)
            states.append((np.asarray(logs, np.float64), take_snapshot(model)))
    (one, after), (other, again_after) = states
    return (
        np.array_equal(one, other, equal_nan=True) and largest_difference(after, again_after) == 0
    )


# Wording ------------------------------------------------------------------------------------------


def describe(
    spec: ReproduceSpec,
    found: tuple[int, str, tuple[float, ...]],
    largest: float,
    first: Difference,
    settings: Sequence[RunSetting],
) -> Reproduction:
    """Returns the record of a comparison."""
    epoch, metric, values = found
    equal = not first.kind
    sentence = (
        f"Two trainings of {count_of(spec.epochs, 'epoch')} from the same state were equal, bit by "
        "bit."
        if equal
        else f"Two trainings from the same state differ: {explain(first, spec.steps)}."
    )
    return Reproduction(
        **{**vars(first), "name": first.name if first.kind != "rows" else ""},
        equal=equal,
        sentence=sentence,
        epoch=epoch,
        metric=metric,
        values=values,
        largest=largest,
        epochs=spec.epochs,
        settings=tuple(settings),
    )


ROWS = {
    "function": "the function that gives the rows gave others",
    "pipeline": "the tf.data pipeline gave other rows",
    "rows": "the rows of the dataset came in another order, or were changed by chance",
}


def explain(first: Difference, steps: int) -> str:
    """Describes the first difference, as the end of a sentence."""
    done = f" ({', '.join(first.operations)})" if first.operations else ""
    of = f" of {first.layer_class}" if first.layer_class else ""
    texts = {
        "rows": f"{ROWS.get(first.name, ROWS['rows'])}, first in batch {first.step}",
        "layer": f'first the output of the layer "{first.name}"{of} in step {first.step}{done}',
        "gradient": f'first the gradient of "{first.name}"{of} in step {first.step}{done}',
        "optimizer": f"first the update of the optimizer in step {first.step}",
        "compiled": f"first step {first.step}, but only in the compiled function",
        "step": f"first step {first.step}; layers are compared on TensorFlow only",
        "unknown": f"not within single steps, the first {steps} of which were equal",
    }
    return texts[first.kind]


# Settings that decide whether two trainings give the same numbers --------------------------------


VARIABLES = ("TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")


@dataclass(frozen=True)
class RunSetting:
    """A setting.

    Args:
        name: Its name.
        value: Its value as text; "not set" for a missing environment variable.
        effect: What it means for trainings that are to repeat.
    """

    name: str
    value: str
    effect: str


def read_run_settings(model: Model, data: Dataset) -> list[RunSetting]:
    """Returns the settings in effect, with what each means."""
    facts = devices.read_setup_facts()
    gpu = bool(facts.visible_gpus)
    seed = getattr(data.spec, "seed", None)
    found = [
        _deterministic(facts.deterministic, gpu),
        RunSetting("seed of the dataset", _text(seed), _explain_seed(seed)),
        RunSetting("shuffle", _text(data.spec.shuffle), "the order follows the dataset's seed"),
        RunSetting("dtype policy", model.dtype_policy.name, "another one gives other numbers"),
        RunSetting("threads", _threads(facts.threads), "sums in another order differ in last bits"),
    ]
    if gpu:
        text = "float32 products have 10 bits of mantissa" if facts.tf32 else "float32 is exact"
        found.append(RunSetting("TF32", _text(facts.tf32), text))
    found += [_variable(name) for name in VARIABLES]
    versions = {"keras": runtime.keras().__version__, **runtime.backend_version()}
    return found + [RunSetting(k, str(v), "another one may differ") for k, v in versions.items()]


def _deterministic(on: bool, gpu: bool) -> RunSetting:
    if on:
        effect = "operations that cannot repeat are refused"
    elif gpu:
        effect = "kernels of a GPU may differ: gpu_setup(deterministic = TRUE) forbids it"
    else:
        effect = "needed on a GPU only"
    return RunSetting("deterministic kernels", _text(on), effect)


def _explain_seed(seed: Any) -> str:
    return "the order differs in each session" if seed is None else "the order repeats"


def _threads(threads: tuple[int, int]) -> str:
    return ", ".join("automatic" if count == 0 else str(count) for count in threads)


def _variable(name: str) -> RunSetting:
    value = environment.c_variable(name)
    return RunSetting(name, "not set" if value is None else value, "read when TensorFlow starts")


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    return str(value).upper() if isinstance(value, bool) else str(value)
