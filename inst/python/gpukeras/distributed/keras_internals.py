"""The private TensorFlow and Keras APIs that a training on several devices needs.

All of them are in this file, so that it alone decides whether a new version of either works:

- the copies of a Keras variable, one for each device, of which each replica uses its own;
- an optimizer that sums gradients over replicas before it clips them, and then updates each
  replica's copies separately: no step of its own leaves the replica;
- Keras' scaling of losses, which is replaced so that each replica's loss is weighted by its rows.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.attributes import replaced
from gpukeras.core.errors import RuntimeMissingError
from gpukeras.core.keras_types import Model, Optimizer
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.system.facts import parse_numbers

# The oldest and the newest versions that were tested; between them TensorFlow 2.20, Keras 3.12. The
# newest were not released: 2.22.0rc0, and keras-nightly 3.16.0.dev2026102704.
TRIED = {"TensorFlow": ("2.19", "2.22"), "Keras": ("3.10", "3.16")}
GROUPS_APART = 1000  # distance between the key ranges of two strategies; a training uses a few keys
COPIES = "_gpukeras_copies"  # attribute of a Keras variable, in its dictionary
# Methods that Keras' optimizers for TensorFlow run through a strategy's variables; the base class
# runs them with plain ones.
THROUGH_STRATEGY = (
    "_backend_update_step",
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_overwrite_model_variables_with_average_value",
)


def require_versions() -> None:
    """Checks the versions: others may have other internals, and train wrongly without an error.

    Raises:
        RuntimeMissingError: for versions older or newer than the tested ones.
    """
    versions = {
        "TensorFlow": runtime.tensorflow().__version__,
        "Keras": runtime.keras().__version__,
    }
    for name, version in versions.items():
        if fault := tell_untried(name, version):
            hint = "Install a version of those, or train on one device."
            raise RuntimeMissingError(fault, hint=hint)


def tell_untried(name: str, version: str) -> str:
    """Returns a sentence about a version that was not tested; "" for others."""
    oldest, newest = TRIED[name]
    if parse_numbers(oldest) <= parse_numbers(version)[:2] <= parse_numbers(newest):
        return ""
    return (
        f"Training on several devices was tried on {name} {oldest} to {newest}, and this is "
        f"{version}."
    )


def this_replica() -> int:
    """Returns `replica()` within a step, where it is never None."""
    number = replica()
    assert number is not None
    return number


def replica() -> int | None:
    """Returns the rank of the replica whose step is being traced, over all computers, or None."""
    tf = runtime.tensorflow()
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return None
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(number))


@functools.cache
def open_mirrored(devices: tuple[str, ...]) -> Any:
    """Returns TensorFlow's strategy for several devices of this computer, one per set of devices.

    Another strategy in the same process needs other keys for its collective operations: TensorFlow
    reuses the group of a known key, and fails where its size differs.
    """
    strategy = runtime.tensorflow().distribute.MirroredStrategy
    keras_private.separate_collective_keys(strategy, GROUPS_APART)
    return strategy(list(devices))


def open_multi_worker(resolver: Any, options: Any) -> Any:
    """Returns TensorFlow's strategy for several processes; the channel alone looks for lost ones.

    Args:
        resolver: TensorFlow's description of the cluster and of this worker.
        options: TensorFlow's options of communication.
    """
    strategy = runtime.tensorflow().distribute.MultiWorkerMirroredStrategy
    keras_private.disable_failure_detection(strategy, runtime.eager_context())
    return strategy(resolver, options)


# Variables ---------------------------------------------------------------------------------------


class _Copied:
    """A mixin for the class of a Keras variable that has copies."""

    @property
    def _value(self) -> Any:
        shares, copies = vars(self)[COPIES]
        number = replica()
        return copies[0 if number is None else number - shares.first]

    def _direct_assign(self, value: Any) -> None:
        if replica() is not None:
            super()._direct_assign(value)  # type: ignore[misc]
            return
        for copy in vars(self)[COPIES][1]:  # an assignment outside of a replica sets all copies
            copy.assign(runtime.tensorflow().cast(value, copy.dtype))


@contextmanager
def hold_copies(variables: Iterable[Any], shares: BatchSharding) -> Iterator[None]:
    """Gives each device its copy of Keras variables; afterwards they are plain variables again.

    Args:
        variables: Keras variables; each may occur several times.
        shares: The batch sharding, with the devices of this process.
    """
    unique = {
        id(variable): variable
        for variable in variables
        if isinstance(variable, runtime.keras().Variable)
    }
    if len(shares.devices) == 1 and all(
        _is_at(variable, shares.devices[0]) for variable in unique.values()
    ):
        yield
        return
    classes: dict[type, type] = {}
    owned = []
    try:
        for variable in unique.values():
            copies = [_copy_to(variable, device) for device in shares.devices]
            if copies[0] is None:
                copies[0] = vars(variable)["_value"]
            owned.append((variable, type(variable)))
            vars(variable)[COPIES] = shares, copies
            own = type(variable)
            classes.setdefault(own, type(own.__name__, (_Copied, own), {}))
            variable.__class__ = classes[own]
        yield
    finally:
        for variable, own in owned:
            _, copies = vars(variable).pop(COPIES)
            variable.__class__ = own
            if vars(variable)["_value"] is not copies[0]:
                vars(variable)["_value"].assign(copies[0])


def _is_at(variable: Any, device: str) -> bool:
    return vars(variable)["_value"].device.endswith(f"device:{device}")


def _copy_to(variable: Any, device: str) -> Any:
    """Copies a variable to a device; returns None if the original is there."""
    if _is_at(variable, device):
        return None
    tf, value = runtime.tensorflow(), vars(variable)["_value"]
    with tf.device(f"/{device}"):
        return tf.Variable(value.read_value(), trainable=value.trainable, dtype=value.dtype)


def seed_states(model: Model) -> list[Any]:
    """Returns the variables of a model's random generators."""
    layers = keras_private.list_layers(model)
    generators = [each for layer in layers for each in keras_private.list_seed_generators(layer)]
    return list({id(generator.state): generator.state for generator in generators}.values())


# Optimizer and losses ----------------------------------------------------------------------------


class Reduction:
    """Sums losses and gradients over all replicas, each loss weighted by its number of rows.

    Attributes:
        factors: The weight of each replica's loss, by rank; set before a step is traced.
        losses: The sum of the weighted losses of the step being traced, by rank.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Keeps the optimizer's own methods."""
        self._scale_loss, self._apply = optimizer.scale_loss, optimizer.apply
        self.factors: Mapping[int, float] = {}
        self.losses: dict[int, Any] = {}
        self._parts: dict[int, Any] = {}

    def scale_loss(self, loss: Any) -> Any:
        """Replaces the optimizer's method, which Keras' own training step calls."""
        number = replica()
        if number is None:
            return self._scale_loss(loss)
        part = loss * runtime.tensorflow().cast(self.factors[number], loss.dtype)
        self._parts[number] = part
        return self._scale_loss(part)

    def apply(self, grads: Iterable[Any], trainable_variables: Any = None) -> Any:
        """Replaces the optimizer's method: applies the gradients summed over all replicas."""
        number, grads = replica(), list(grads)
        if number is None:
            return self._apply(grads, trainable_variables)
        gradients = [gradient for gradient in grads if gradient is not None]
        loss = self._parts.pop(number, None)
        if loss is None:  # a user's own step that does not scale its loss
            gradients = [_scale(gradient, self.factors[number]) for gradient in gradients]
        reduced = sum_up([*gradients, *([] if loss is None else [loss])])
        if loss is not None:
            self.losses[number] = reduced.pop()
        each = iter(reduced)
        return self._apply(
            [None if gradient is None else next(each) for gradient in grads], trainable_variables
        )


def sum_up(values: list[Any]) -> list[Any]:
    """Traced in a replica: returns the sums over all replicas.

    The gradient of an embedding is an `IndexedSlices`, and is gathered rather than summed: Keras'
    optimizers square each occurrence of a repeated row separately, so the sum of the slices would
    train differently than on one device.
    """
    tf = runtime.tensorflow()
    rows = [isinstance(value, tf.IndexedSlices) for value in values]
    # Identity puts each value on the replica's device; the sum is made there.
    dense = [
        tf.identity(tf.convert_to_tensor(value))
        for value, few in zip(values, rows, strict=True)
        if not few
    ]
    sums = iter(tf.distribute.get_replica_context().all_reduce("SUM", dense) if dense else [])
    return [
        _gather_rows(value) if few else next(sums) for value, few in zip(values, rows, strict=True)
    ]


def _gather_rows(slices: Any) -> Any:
    tf = runtime.tensorflow()
    gather = tf.distribute.get_replica_context().all_gather
    values, indices = gather(tf.identity(slices.values), 0), gather(tf.identity(slices.indices), 0)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _scale(gradient: Any, factor: float) -> Any:
    tf = runtime.tensorflow()
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * factor
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * factor


@contextmanager
def gather_metrics(model: Model) -> Iterator[None]:
    """Gives a model's compiled metrics the rows of all replicas, in the order of the batch."""
    tf, own = runtime.tensorflow(), model.compute_metrics

    def gather(rows: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return None if rows is None else context.all_gather(tf.identity(rows), 0)

    def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        rows = runtime.tree().map_structure(gather, (y, y_pred, sample_weight))
        return own(x, *rows)

    with replaced(model, compute_metrics=compute_metrics):
        yield


@contextmanager
def hold_reduction(optimizer: Optimizer) -> Iterator[Reduction]:
    """Makes an optimizer use the sum over all replicas; each replica applies the same update."""
    reduction, inner = Reduction(optimizer), keras_private.without_scaling(optimizer)
    base = next(kind for kind in type(inner).__mro__ if kind.__name__ == "BaseOptimizer")
    with ExitStack() as held:
        for part in [inner, *keras_private.inner_optimizers(inner)]:
            own: dict[str, Any] = {
                name: types.MethodType(getattr(base, name), part) for name in THROUGH_STRATEGY
            }
            own[keras_private.VARIABLE_KEY] = _key_by_first(part)
            held.enter_context(replaced(part, **own))
        held.enter_context(
            replaced(optimizer, scale_loss=reduction.scale_loss, apply=reduction.apply)
        )
        if inner is not optimizer:
            apply = {keras_private.APPLY: keras_private.common_apply(optimizer)}
            held.enter_context(replaced(optimizer, **apply))
        yield reduction


def _key_by_first(optimizer: Optimizer) -> Callable[[Any], Any]:
    """Returns a key function that gives all copies of a variable one slot in an optimizer."""
    own, keras = keras_private.variable_key(optimizer), runtime.keras()

    def key(variable: Any) -> Any:
        copied = isinstance(variable, keras.Variable) and COPIES in vars(variable)
        return own(vars(variable)["_value"] if copied else variable)

    return key


@contextmanager
def hold_losses(
    scale: Callable[[Any], Any] = lambda value: value,
    unscale: Callable[[Any], Any] = lambda value: value,
) -> Iterator[None]:
    """Replaces Keras' scaling of losses by the number of replicas; see `Reduction` for the weights.

    Args:
        scale: Applied to means and penalties; by default they stay unchanged.
        unscale: Applied to the loss of a replica's rows for the metric "loss".
    """
    module = sys.modules[runtime.keras().losses.Loss.__module__]
    own = {"scale_loss_for_distribution": scale, "unscale_loss_for_distribution": unscale}
    with replaced(module, **own):
        yield
