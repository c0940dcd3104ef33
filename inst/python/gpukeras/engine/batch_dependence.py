"""Decides whether a model's results depend on how rows are batched: then Keras' batches are kept.

Evaluations and predictions run in large batches, because nothing is learned. That gives Keras'
results only if a row's result does not depend on the other rows of its batch. The decision:

* Layers, losses and metrics that `rowwise` knows need no look at the model.
* A loss, a metric or a step that it does not know keeps Keras' batches: no few rows can prove that
  it is a mean over rows (a recall whose first rows have no positive is 0 however they are batched).
* Layers that it does not know are asked, once a model: its first rows run with other neighbours and
  in two sizes of batches. Where a row's outputs change, or the call changes the model's state
  (random numbers, counters), Keras' batches are kept. Weights that are all the same, such as zeros
  before the training, are varied meanwhile, as they would hide what comes before them. The model
  keeps its state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import devices, keras_private, runtime, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.engine import rowwise
from gpukeras.engine.batch_rows import count_row_bytes, fixed_rows, model_device
from gpukeras.engine.engine_cache import CacheKey, kept_by

KERAS_ROWS = 32  # of a batch of Keras' own evaluate() and predict()
CALL, OWN_STEP = "call", "own predict_step"  # what a verdict is about
PROBED_BYTES = 2**28  # of all layers' outputs for the rows that are looked at
# Differences, as a share of the largest output.
SAME = 1e-5
ABOUT = 1e-2
ABOUT_HALF = 5e-2
MIXES = "what the model gives for a row depends on the other rows of its batch"
CHANGES = "the model draws random numbers, or keeps a state, when it is called"
NO_ROWS = "the model's outputs do not have a row for each row"

Take = Callable[[np.ndarray], Any]  # maps places of rows to features as the model takes them


@dataclass(frozen=True)
class Sample:
    """Rows on which a model is looked at.

    Args:
        rows: How many there are.
        take: Maps places of some of them to features as the model takes them.
        whole: Whether these are all rows.
    """

    rows: int
    take: Take
    whole: bool = True


@dataclass(frozen=True)
class Verdict:
    """How a model's results depend on the batch.

    Args:
        outputs: Why its outputs do, or "".
        losses: Why a loss of these outputs may, or "".
    """

    outputs: str = ""
    losses: str = ""


def sample_of(data: Dataset, part: str = "all") -> Sample | None:
    """Returns rows of a dataset; None where batches stay as they come, whatever the model."""
    if data.obstacle:
        return None
    if isinstance(data, MapDataset):
        numbers, whole = data.rows(part), True
    else:
        numbers, whole = np.arange(len(data.sources[0]), dtype=np.int32), False
    return Sample(len(numbers), lambda places: sample_rows(data, numbers[places])[0], whole)


def explain_outputs(model: Model, sample: Sample | None, size: int = KERAS_ROWS) -> str:
    """Returns why a model's outputs may be others than in Keras' batches, or "".

    Args:
        model: A built model.
        sample: The rows; None where their batches stay as they come.
        size: Rows of a batch of Keras.
    """
    return _judge(model, sample, size, "predict").outputs


def kept_reason(model: Model) -> str:
    """Returns why predictions of a model depend on the batch, as far as it was looked at; or ""."""
    kept = kept_by(model)
    own_step = tensor_ops.overrides(model, "predict_step")
    verdict: Verdict = kept.get(OWN_STEP if own_step else CALL, (None, Verdict()))[1]
    return verdict.outputs


def explain_results(model: Model, sample: Sample | None, size: int = KERAS_ROWS) -> str:
    """Returns why loss or metrics may be others than in Keras' batches, or "".

    Args:
        model: A compiled and built model.
        sample: See `explain_outputs()`.
        size: See `explain_outputs()`.
    """
    if _is_decided(model, sample, size):
        return ""
    known = rowwise.explain_results(model)
    if known:
        return known
    verdict = _judge(model, sample, size, "test")
    return verdict.outputs or verdict.losses


def choose_batches(model: Model, data: Dataset, part: str, size: int) -> tuple[int | None, str]:
    """Returns rows per batch of an evaluation, None for large batches, and why; "" for these.

    Args:
        model: A compiled and built model.
        data: The rows; those of a stream keep the batches that they come in.
        part: "all", "train" or "validation".
        size: Rows of a batch of Keras.
    """
    if data.variable_batch_size and isinstance(data, MapDataset):
        return size, "the loss of each output is averaged by batch"
    keras_size = data.facts.chunk_rows if isinstance(data, IterableDataset) else size
    why = explain_results(model, sample_of(data, part), keras_size)
    return (keras_size, why) if why else (None, "")


def _is_decided(model: Model, sample: Sample | None, size: int) -> bool:
    """Whether batches are Keras' own anyway: as they come, of fixed size, or just one."""
    if sample is None or (sample.whole and sample.rows <= size):
        return True
    return fixed_rows(model) is not None


def _judge(model: Model, sample: Sample | None, size: int, kind: str) -> Verdict:
    """Returns the model's verdict; a kept one as long as the model has the same layers."""
    if sample is None or _is_decided(model, sample, size):
        return Verdict()
    own_step = kind == "predict" and tensor_ops.overrides(model, "predict_step")
    layers = keras_private.list_layers(model)
    settings = devices.current(), model.run_eagerly, *(layer.trainable for layer in layers)
    calls = (getattr(layer, "activation", None) for layer in layers)
    key = CacheKey(settings, (type(model).predict_step if own_step else None, *layers, *calls))
    kept, name = kept_by(model), OWN_STEP if own_step else CALL
    if name not in kept or not kept[name][0].equal(key):
        kept[name] = key, _look(model, sample, own_step)
    verdict: Verdict = kept[name][1]
    return verdict


def _look(model: Model, sample: Sample, own: bool) -> Verdict:
    unknown = "its predict_step()" if own else rowwise.find_unknown_layer(model)
    if not unknown:
        return Verdict()
    most = KERAS_ROWS
    while True:
        try:
            with tensor_ops.device_scope(model_device(model)), tensor_ops.memory_faults():
                return probe(model, sample, own, most)
        except tensor_ops.exhausted():
            if most == 1:
                return Verdict(f"{unknown} does not fit into memory")
            most //= 2
        except Exception:  # whatever the user's code raises: Keras' own batches will show it
            return Verdict(f"{unknown} could not be called on rows in two sizes of batches")


# Asking the model --------------------------------------------------------------------------------


def probe(model: Model, sample: Sample, own: bool = False, most: int = KERAS_ROWS) -> Verdict:
    """Returns whether a model's outputs for a row are the same whatever its batch is.

    Args:
        model: A built model; it keeps its state.
        sample: Rows to look at.
        own: Whether by its own `predict_step()`.
        most: The most rows of the smaller batches.
    """
    half = min(most, sample.rows // 2, _count_affordable(model))
    if half < 1:
        return Verdict("there are too few rows to see whether they depend on each other")
    places = np.linspace(0, sample.rows - 1, 2 * half).astype(np.int64)
    one, two = places[:half], places[half:]
    call = _Call(model, sample.take(places), own)
    before = call.state
    whole, after = call(before, sample.take(places))
    neighbours = [call(before, sample.take(np.r_[part, part]))[0] for part in (one, two)]
    first, between = call(before, sample.take(one))
    second, last = call(between, sample.take(two))
    if not all(np.shape(array)[:1] == (2 * half,) for array in whole):
        return Verdict(NO_ROWS)
    if call.changes(before, after) or call.changes(between, last):
        return Verdict(CHANGES)
    kinds = {str(layer.compute_dtype) for layer in keras_private.list_layers(model)}
    about = ABOUT_HALF if any("16" in kind or "8" in kind for kind in kinds) else ABOUT
    parts = zip(whole, *neighbours, first, second, strict=True)
    same = all(
        _is_same(array[:half], near[:half], SAME)
        and _is_same(array[half:], beside[half:], SAME)
        and _is_same(array[:half], alone, about)
        and _is_same(array[half:], other, about)
        for array, near, beside, alone, other in parts
    )
    return Verdict("" if same else MIXES, call.losses)


def _count_affordable(model: Model) -> int:
    """Returns the rows of half of the sample that fit into memory, at least one."""
    return max(1, PROBED_BYTES // (2 * (count_row_bytes(model) or 1)))


class _Call:
    """A model's call on any number of rows, as a function of its state, which it does not change.

    Args:
        model: A built model.
        features: Rows of the kind that it will take.
        own: See `probe()`.

    Attributes:
        state: The values of its variables; weights that are all the same are varied.
        losses: Why a loss of its outputs may depend on the batch, or "".
    """

    def __init__(self, model: Model, features: Any, own: bool) -> None:
        """Traces the call."""
        self._model = model
        self._own = own
        self.losses = ""
        named = [*model.variables, *tensor_ops.global_seed_state(), *model.metrics_variables]
        self._variables = list({id(variable): variable for variable in named}.values())
        self.state = [
            _vary(variable) if variable.trainable else variable.value
            for variable in self._variables
        ]
        self._program: Callable[[Any, Any], Any] = self._run
        self._others: list[Any] = []
        if not model.run_eagerly:
            self._program, self._others = tensor_ops.trace_rows(self._run, self.state, features)
        self._kept = [np.array(variable) for variable in self._others]

    def __call__(self, state: Any, features: Any) -> tuple[list[np.ndarray], Any]:
        """Returns the outputs, and the state after the call."""
        placed = runtime.tree().map_structure(self._place, features)
        outputs, after = self._program(state, placed)
        return [_read(output) for output in outputs], after

    def _place(self, rows: Any) -> Any:
        """Returns numbers on the device of the state; a sample's lie in the host's memory."""
        numbers = "float" in runtime.keras().backend.standardize_dtype(rows.dtype)
        return tensor_ops.put(rows, model_device(self._model)) if numbers else rows

    def changes(self, before: Any, after: Any) -> bool:
        """Whether a call changed the state; variables of TensorFlow's own get their values back."""
        others = list(zip(self._others, self._kept, strict=True))
        moved = [not np.array_equal(variable, kept) for variable, kept in others]
        for variable, kept in others:
            variable.assign(kept)
        pairs = zip(self._variables, before, after, strict=True)
        ours = {id(variable) for variable in self._model.metrics_variables}
        return any(moved) or any(
            not np.array_equal(_read(old), _read(new))
            for variable, old, new in pairs
            if old is not new and id(variable) not in ours
        )

    def _run(self, state: Any, features: Any) -> tuple[list[Any], list[Any]]:
        pairs = list(zip(self._variables, state, strict=True))
        with runtime.keras().StatelessScope(state_mapping=pairs, collect_losses=True) as scope:
            outputs = runtime.tree().flatten(self._call(features))
        self.losses = rowwise.explain_tensors(outputs)
        if scope.losses:
            self.losses = "a layer adds to the loss of a batch"
        return outputs, [scope.get_current_value(variable) for variable in self._variables]

    def _call(self, features: Any) -> Any:
        if self._own:
            return tensor_ops.predict_by_step(self._model, features)
        takes = keras_private.takes_training(self._model)
        return self._model(features, training=False) if takes else self._model(features)


def _vary(variable: Any) -> Any:
    """Returns a weight's values; others than they are where they are all the same."""
    value, ops = variable.value, runtime.keras().ops
    if not str(variable.dtype).startswith(("float", "bfloat")) or not np.prod(variable.shape):
        return value
    if float(ops.max(value)) != float(ops.min(value)):
        return value
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, variable.shape)
    return ops.cast(ops.convert_to_tensor(noise.astype(np.float32)), variable.dtype) + value


def _read(tensor: Any) -> np.ndarray:
    array = np.asarray(tensor)
    return array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16


def _is_same(values: np.ndarray, other: np.ndarray, share: float) -> bool:
    """Whether arrays are equal, but for a share of their largest number."""
    if values.shape != other.shape:
        return False
    if values.dtype.kind not in "fc":
        return np.array_equal(values, other)
    finite = np.isfinite(values)
    if not finite.any() or not np.array_equal(finite, np.isfinite(other)):
        return False
    most = float(np.abs(values[finite]).max())
    return bool((np.abs(values[finite] - other[finite]) <= share * most).all())
