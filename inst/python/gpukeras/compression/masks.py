"""Masks that keep pruned weights at 0 in any further training.

A mask is the constraint of its variable. Keras' optimizers apply it after every update, inside the
step: in Keras' own functions, in a loop of many steps and in an XLA program alike. So masks survive
`compile()` and any further training. They are not variables of the model: saved files, snapshots
and checkpoints are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import DataError
from gpukeras.core.keras_types import Model
from gpukeras.engine import engine_cache

# By the weight names of Keras' own layers. Depthwise kernels are left out: they are a hundredth of
# a model and essential (Zhu & Gupta 2017 leave them out too). So are biases, norms and embeddings.
KERNELS = ("kernel", "recurrent_kernel", "pointwise_kernel")
DEPTHWISE = ("DepthwiseConv1D", "DepthwiseConv2D", "DepthwiseConv3D")


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of a model.

    Args:
        path: Names from below the model down to it, joined by "/", such as "dense_1/kernel".
        layer: Its layer.
        variable: Keras' variable.
    """

    path: str
    layer: Any
    variable: Any

    @property
    def name(self) -> str:
        """The layer's path, as in `profiler.cost.model_cost`."""
        return self.path.rpartition("/")[0]


class Mask:
    """A variable's constraint that keeps some of its weights at 0.

    Args:
        variable: The variable.
        keep: Which of its weights are not 0; of its shape.
        own: The variable's previous constraint, which still applies.
        before: Called first, inside the step; may change `keep`. None for no call.

    Attributes:
        keep: The mask as a Keras variable, on the device of the weights.
    """

    def __init__(
        self,
        variable: Any,
        keep: np.ndarray,
        own: Callable[[Any], Any] | None = None,
        before: Callable[[Mask], None] | None = None,
    ) -> None:
        """Places the mask on the device of the weights."""
        # XLA accepts no variables of another device.
        self.keep = tensor_ops.variable_beside(variable, keep, "bool")
        self.own, self._before = own, before

    def __call__(self, value: Any) -> Any:
        """Returns the weights after an update, with the masked ones set to 0."""
        if self._before is not None:
            self._before(self)
        masked = self.cover(value)
        return masked if self.own is None else self.cover(self.own(masked))

    def cover(self, value: Any) -> Any:
        """Returns a value with zeros where the mask has them; they also replace NaN."""
        ops = runtime.keras().ops
        # Both converted, as where() takes a variable's first value for a constant on JAX.
        keep, value = ops.convert_to_tensor(self.keep), ops.convert_to_tensor(value)
        return ops.where(keep, value, ops.zeros_like(value))


def list_kernels(model: Model) -> list[Kernel]:
    """Returns the kernels that can have a mask, in layer order; shared ones once."""
    seen: set[int] = set()
    taken: set[str] = set()
    kernels = []
    for name, layer in list_layers(model):
        for variable in _own_kernels(layer):
            if id(variable) in seen:
                continue
            seen.add(id(variable))
            path = _new_name(f"{name}/{variable.name}", taken)
            kernels.append(Kernel(path, layer, variable))
    return kernels


def list_layers(model: Model, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields all layers inside a model with their paths: names below the model, joined by "/"."""
    for layer in keras_private.list_layers(model, include_self=False, recursive=False):
        name = f"{above}/{layer.name}" if above else layer.name
        yield name, layer
        yield from list_layers(layer, name)


def _own_kernels(layer: Any) -> list[Any]:
    if type(layer).__name__ in DEPTHWISE or getattr(layer, "quantization_mode", None) is not None:
        return []
    below = keras_private.list_layers(layer, include_self=False, recursive=False)
    inside = {id(weight) for inner in below for weight in inner.weights}
    return [
        weight
        for weight in layer.weights
        if id(weight) not in inside and weight.name in KERNELS and len(weight.shape) >= 2
    ]


def _new_name(name: str, taken: set[str]) -> str:
    """Returns the name, with a number appended if two custom layers share it."""
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}:{count}"
    taken.add(unique)
    return unique


# Reading and applying ----------------------------------------------------------------------------


def read_masks(model: Model) -> dict[str, np.ndarray]:
    """Returns a model's masks by path: True where a weight may differ from 0; {} without masks."""
    return {
        kernel.path: kernel.variable.constraint.keep.numpy()
        for kernel in list_kernels(model)
        if isinstance(kernel.variable.constraint, Mask)
    }


def apply_masks(model: Model, masks: Mapping[str, np.ndarray]) -> None:
    """Applies masks to a model and sets the masked weights to 0; other kernels keep their masks.

    Args:
        model: A built Keras model.
        masks: By path, as `read_masks()` returns them.

    Raises:
        DataError: if a path is not in the model, or a mask has another shape; nothing is changed.
    """
    known = {kernel.path: kernel for kernel in list_kernels(model)}
    for path, keep in masks.items():
        _check_mask(path, keep, known.get(path))
    for path, keep in masks.items():
        variable = known[path].variable
        mask = Mask(variable, np.asarray(keep, bool), own_constraint(variable))
        set_mask(variable, mask)
    if masks:
        forget_programs(model)


def _check_mask(path: str, keep: Any, kernel: Kernel | None) -> None:
    if kernel is None:
        raise DataError(f"A mask is of `{path}`, which the model does not have.", arg="masks")
    shapes = tuple(np.shape(keep)), tuple(kernel.variable.shape)
    if shapes[0] != shapes[1]:
        raise DataError(
            f"The mask of `{path}` has shape {shapes[0]}, and the kernel {shapes[1]}.", arg="masks"
        )


def own_constraint(variable: Any) -> Callable[[Any], Any] | None:
    """Returns a variable's constraint without the mask around it."""
    constraint = variable.constraint
    return constraint.own if isinstance(constraint, Mask) else constraint


def set_mask(variable: Any, mask: Mask) -> None:
    """Makes a mask the constraint of a variable and sets the masked weights to 0."""
    variable.assign(mask.cover(variable.value))
    variable.constraint = mask


def forget_programs(model: Model) -> None:
    """Drops the model's traced functions, which lack its new constraints."""
    model.train_function = None
    vars(model).pop(engine_cache.ATTRIBUTE, None)


def sparsity(masks: Mapping[str, np.ndarray]) -> float:
    """Returns the share of masked weights among those under masks; 0 without masks."""
    total = sum(keep.size for keep in masks.values())
    return 1 - sum(int(keep.sum()) for keep in masks.values()) / total if total else 0.0
