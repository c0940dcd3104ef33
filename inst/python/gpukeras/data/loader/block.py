"""Defines blocks of batches on the device, and the base class of the loaders that make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.data.plan import PipelinePlan
from gpukeras.data.stage_timer import Clock, end_stage

# Transforms a block's rows on the device; the key of its random numbers is (epoch, block).
DeviceTransform = Callable[[tuple[Any, ...], tuple[int, int]], tuple[Any, ...]]


@dataclass(frozen=True)
class Block:
    """The rows of several batches on the device.

    Args:
        arrays: The data of the steps, of `capacity * batch_size` rows, or fewer in a tail:
            features, labels and weights as a tuple, or features alone, see `as_data()`. Several
            inputs or outputs are a dict of tensors by name, or a list if they have no names. If
            several devices share each batch, one such structure for each device of this process.
        batches: Full batches to train; the other rows are padding to a fixed shape.
        rows: Rows of one batch, on all devices together.
        tail: Whether the block is a single batch of another size, such as the short last one.
        whole: Why only Keras' train function can take the block, or "".
    """

    arrays: Any
    batches: int
    rows: int
    tail: bool = False
    whole: str = ""


class DataLoader(ABC):
    """The base class of loaders, which yield the blocks of an epoch.

    Args:
        batch_size: Rows per batch.
        device: The device of the blocks.
        device_transform: Applied to a block's arrays on the device; None for nothing.
        shares: How several devices share each batch; None for one device.
        wrapped: See `as_data()`.

    Attributes:
        wait_s: Seconds spent waiting for rows.
        capacity: Batches of the next block; 0 if that depends on its rows.
        steps: Batches per epoch, or None while unknown.
        exact: Whether `steps` is exact rather than an estimate.
        clock: The clock to which the stages of the next blocks report, see `stage_timer`.
    """

    steps: int | None
    exact: bool
    _gatherers: tuple[tuple[Callable[..., Any], ...], ...] = ()

    def __init__(
        self,
        batch_size: int,
        device: str,
        device_transform: DeviceTransform | None,
        shares: BatchSharding | None = None,
        wrapped: bool = False,
    ) -> None:
        """Stores the settings and starts `wait_s` at 0."""
        self._wrapped = wrapped
        self.batch_size, self.shares = batch_size, shares
        self.capacity = 0
        self.wait_s = 0.0
        self.clock = Clock()
        self._device = device
        self._device_transform = device_transform

    @abstractmethod
    def epoch(self, number: int, more: bool = False) -> Generator[Block, None, None]:
        """Yields the blocks of an epoch, counted from 0.

        Args:
            number: The epoch's number.
            more: Whether the next epoch follows: its first block may be gathered before it begins.
        """

    def release(self) -> None:
        """Frees the memory for further blocks, once no epoch follows."""
        self._gatherers = ()

    @abstractmethod
    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """Returns the plan with the number of rows that an epoch had."""

    def _leave(self, arrays: Any, batches: int, rows: int, tail: bool, whole: str) -> Block:
        """Makes a block of batches as they come; TensorFlow sends those for Keras' function."""
        if not whole:
            put = partial(tensor_ops.put, device=self._device)
            arrays = runtime.tree().map_structure(put, arrays)
        return Block(arrays, batches, rows if tail else self.batch_size, tail, whole)

    def _complete(self, arrays: tuple[Any, ...], key: tuple[int, int], device: str = "") -> Any:
        """Puts arrays on a device as the model takes them: augmented, with float features."""
        place = device or self._device
        arrays = tuple(tensor_ops.put(array, place) for array in arrays)
        with tensor_ops.device_scope(place):
            end_stage("send", arrays)
            arrays = as_floats(
                arrays if self._device_transform is None else self._device_transform(arrays, key)
            )
            return as_data(arrays, self._wrapped)

    def _complete_parts(
        self, parts: Sequence[tuple[Any, ...]], key: tuple[int, int]
    ) -> tuple[Any, ...]:
        """Puts each part of a shared block on its device, with separate random numbers."""
        (epoch, block), shares = key, self.shares
        assert shares is not None  # only a shared block has parts
        return tuple(
            self._complete(arrays, (epoch, block * shares.replicas + rank), device)
            for arrays, rank, device in zip(parts, shares.ranks, shares.devices, strict=True)
        )


def as_data(arrays: tuple[Any, ...], wrapped: bool = False) -> Any:
    """Returns the `data` of Keras' train step: features alone are not a tuple, but `x` itself.

    Args:
        arrays: Features, labels and weights, without those that do not exist.
        wrapped: Whether features came as `(x,)` from a pipeline or a function; Keras keeps that.
    """
    return arrays if len(arrays) > 1 or wrapped else arrays[0]


def as_floats(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Casts features that are not floats, such as bytes and integers, to float32.

    Several inputs, which were split from float features, and texts are not cast.
    """
    features, *others = arrays
    keras = runtime.keras()
    if isinstance(features, (dict, list)):
        return arrays
    dtype = keras.backend.standardize_dtype(features.dtype)
    if dtype != "string" and "float" not in dtype:
        features = keras.ops.cast(features, "float32")
        end_stage("cast", (features,))
    return (features, *others)
