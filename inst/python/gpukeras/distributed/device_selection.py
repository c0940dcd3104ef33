"""Which devices a training is to use: from what the user wrote to TensorFlow's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpukeras.core.errors import NoDeviceError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import describe


def parse_devices(requested: Any) -> str | int | tuple[str, ...]:
    """`devices` as "all", a number, or names such as ("GPU:0", "GPU:1").

    Raises:
        SpecError: if it is none of these.
    """
    if isinstance(requested, str) and requested == "all":
        return "all"
    number = isinstance(requested, (int, float)) and not isinstance(requested, bool)
    if number and math.isfinite(requested) and requested == int(requested) and requested >= 1:
        return int(requested)
    names = [requested] if isinstance(requested, str) else requested
    if isinstance(names, (list, tuple)) and names and all(isinstance(n, str) for n in names):
        upper = tuple(name.upper() for name in names)
        if len(set(upper)) == len(upper):
            return upper
    raise SpecError(
        '`devices` must be "all", a number of GPUs, or different names such as "GPU:0", not '
        f"{describe(requested)}.",
        arg="devices",
    )


def choose_devices(
    requested: str | int | tuple[str, ...], gpus: Sequence[str], cpus: Sequence[str]
) -> tuple[str, ...]:
    """The devices to train on; without a GPU "all" is the CPU.

    Args:
        requested: See `parse_devices()`.
        gpus: TensorFlow's names of the visible GPUs.
        cpus: Those of its logical CPUs; one, unless its owner has split it.

    Raises:
        NoDeviceError: if one that was asked for is not there.
    """
    if isinstance(requested, str):  # "all"
        return tuple(gpus) or tuple(cpus[:1])
    if isinstance(requested, int):
        if requested > len(gpus):
            raise NoDeviceError(
                f"`devices` asks for {count_of(requested, 'GPU')}, and TensorFlow sees "
                f"{len(gpus) or 'none'}.",
                hint="See gpu_check().",
                arg="devices",
                wanted=requested,
                found=list(gpus),
            )
        return tuple(gpus[:requested])
    for name in requested:
        if name not in (*gpus, *cpus):
            listed = ", ".join((*gpus, *cpus))
            raise NoDeviceError(
                f"`devices` names {name}, and TensorFlow has {listed}.",
                hint="See gpu_devices().",
                arg="devices",
                wanted=name,
                found=[*gpus, *cpus],
            )
    return requested
