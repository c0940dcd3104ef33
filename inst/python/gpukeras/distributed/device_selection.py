"""Which devices a training is to use: from what the user wrote to TensorFlow's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpukeras.core.errors import NoDeviceError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import describe


def parse_devices(wanted: Any) -> str | int | tuple[str, ...]:
    """`devices` as "all", a number, or names such as ("GPU:0", "GPU:1").

    Raises:
        SpecError: if it is none of these.
    """
    if isinstance(wanted, str) and wanted == "all":
        return "all"
    number = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
    if number and math.isfinite(wanted) and wanted == int(wanted) and wanted >= 1:
        return int(wanted)
    names = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(names, (list, tuple)) and names and all(isinstance(n, str) for n in names):
        upper = tuple(name.upper() for name in names)
        if len(set(upper)) == len(upper):
            return upper
    raise SpecError(
        '`devices` must be "all", a number of GPUs, or different names such as "GPU:0", not '
        f"{describe(wanted)}.",
        arg="devices",
    )


def choose_devices(
    wanted: str | int | tuple[str, ...], gpus: Sequence[str], cpus: Sequence[str]
) -> tuple[str, ...]:
    """The devices to train on; without a GPU "all" is the CPU.

    Args:
        wanted: See `parse_devices()`.
        gpus: TensorFlow's names of the visible GPUs.
        cpus: Those of its logical CPUs; one, unless its owner has split it.

    Raises:
        NoDeviceError: if one that was asked for is not there.
    """
    if isinstance(wanted, str):  # "all"
        return tuple(gpus) or tuple(cpus[:1])
    if isinstance(wanted, int):
        if wanted > len(gpus):
            raise NoDeviceError(
                f"`devices` asks for {count_of(wanted, 'GPU')}, and TensorFlow sees "
                f"{len(gpus) or 'none'}.",
                hint="See gpu_check().",
                arg="devices",
                wanted=wanted,
                found=list(gpus),
            )
        return tuple(gpus[:wanted])
    for name in wanted:
        if name not in (*gpus, *cpus):
            listed = ", ".join((*gpus, *cpus))
            raise NoDeviceError(
                f"`devices` names {name}, and TensorFlow has {listed}.",
                hint="See gpu_devices().",
                arg="devices",
                wanted=name,
                found=[*gpus, *cpus],
            )
    return wanted
