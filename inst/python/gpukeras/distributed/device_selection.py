"""Chooses the devices of a training: from the user's `devices` to TensorFlow's device names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpukeras.core.errors import NoDeviceError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import describe


def parse_devices(requested: Any) -> str | int | tuple[str, ...]:
    """Parses `devices` to "all", a number, or names such as ("GPU:0", "GPU:1").

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


def asks_several(requested: str | int | tuple[str, ...]) -> bool:
    """Whether more than one device is asked for, whatever devices there are."""
    count = requested if isinstance(requested, int) else len(requested)
    return requested != "all" and count > 1


def choose_devices(
    requested: str | int | tuple[str, ...], gpus: Sequence[str], cpus: Sequence[str]
) -> tuple[str, ...]:
    """Returns the devices to train on; without a GPU "all" means the CPU.

    Args:
        requested: See `parse_devices()`.
        gpus: TensorFlow's names of the visible GPUs.
        cpus: TensorFlow's names of its logical CPUs; one, unless the user has split it.

    Raises:
        NoDeviceError: if a requested device does not exist.
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
