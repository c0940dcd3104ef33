"""Blocks of batches on the device, and what all loaders of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import runtime
from gpukeras.data.plan import PipelinePlan
from gpukeras.data.sharding import BatchSharding
from gpukeras.data.stage_timer import Clock, end_stage

# Varies a block's rows on the device; the key of its random numbers is (epoch, block).
DeviceTransform = Callable[[tuple[Any, ...], tuple[int, int]], tuple[Any, ...]]


@dataclass(frozen=True)
class Block:
    """Some batches' rows on the device.

    Args:
        arrays: What a step takes, of `capacity * batch_size` rows, or fewer in a tail: features,
            labels and weights as a tuple, or features alone, see `as_data()`. Several inputs or
            outputs are a dict of tensors by their names, or a list without such. Where several
            devices share each batch, one such nest for each device of this process.
        batches: Full batches that may be trained; the rest is padding of a fixed shape.
        rows: Rows of one of its batches, on all devices together.
        tail: Whether it is a batch for itself instead, such as the short last one.
        whole: Why only Keras' own function can take it, or "".
    """

    arrays: Any
    batches: int
    rows: int
    tail: bool = False
    whole: str = ""


class DataLoader(ABC):
    """What gives the blocks of one epoch after another.

    Args:
        batch_size: Rows a batch.
        device: Where the blocks are to be.
        device_transform: Applied to a block's arrays there; None for nothing.
        shares: How several devices share each batch; None where there is one.
        wrapped: See `as_data()`.

    Attributes:
        wait_s: Seconds that were spent waiting for rows.
        capacity: Batches of the next block; 0 where that is up to its rows.
        steps: Batches an epoch, or None while that is unknown.
        exact: Whether `steps` is more than an estimate.
        clock: What the stages of its next blocks report to, see `stage_timer`.
    """

    steps: int | None
    exact: bool

    def __init__(
        self,
        batch_size: int,
        device: str,
        device_transform: DeviceTransform | None,
        shares: BatchSharding | None = None,
        wrapped: bool = False,
    ) -> None:
        """Starts the clock at 0."""
        self._wrapped = wrapped
        self.batch_size, self.shares = batch_size, shares
        self.capacity = 0
        self.wait_s = 0.0
        self.clock = Clock()
        self._device = device
        self._device_transform = device_transform

    @abstractmethod
    def epoch(self, number: int) -> Generator[Block, None, None]:
        """The blocks of an epoch, counted from 0."""

    def capacity_for(self, engine: str) -> int:
        """Batches of the blocks that suit an engine; 0 where all get the same."""
        return 0

    def suit(self, engine: str) -> None:
        """The blocks to come, but for one that is ready, are to suit an engine."""
        self.capacity = self.capacity_for(engine) or self.capacity

    @abstractmethod
    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan with what an epoch has taught: how many rows there are."""

    def _complete(self, arrays: tuple[Any, ...], key: tuple[int, int], device: str = "") -> Any:
        """The arrays on a device as the model takes them: augmented, features as floats."""
        tf = runtime.tensorflow()
        with tf.device(f"/{device or self._device}"):
            arrays = tuple(tf.identity(array) for array in arrays)  # a copy only from elsewhere
            end_stage("send", arrays)
            arrays = as_floats(
                arrays if self._device_transform is None else self._device_transform(arrays, key)
            )
            return as_data(arrays, self._wrapped)

    def _complete_parts(
        self, parts: Sequence[tuple[Any, ...]], key: tuple[int, int]
    ) -> tuple[Any, ...]:
        """The parts of the devices that share a block, each on its own, with its own numbers."""
        (epoch, block), shares = key, self.shares
        assert shares is not None  # else there are no parts
        return tuple(
            self._complete(arrays, (epoch, block * shares.replicas + rank), device)
            for arrays, rank, device in zip(parts, shares.ranks, shares.devices, strict=True)
        )


def as_data(arrays: tuple[Any, ...], wrapped: bool = False) -> Any:
    """What Keras gives to a step: features alone are no tuple, so that its `data` is `x` itself.

    Args:
        arrays: Features, labels and weights, as many as there are.
        wrapped: Whether they came as `(x,)`, from a pipeline or a function, which Keras keeps so.
    """
    return arrays if len(arrays) > 1 or wrapped else arrays[0]


def as_floats(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arrays with features as the model takes them: bytes and whole numbers become float32.

    Several inputs, which were floats before they were taken apart, and texts stay as they are.
    """
    features, *others = arrays
    kept = isinstance(features, (dict, list)) or features.dtype.name == "string"
    if not kept and not features.dtype.is_floating:
        features = runtime.tensorflow().cast(features, "float32")
        end_stage("cast", (features,))
    return (features, *others)
