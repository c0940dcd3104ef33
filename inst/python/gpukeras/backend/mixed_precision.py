"""Chooses the number format that layers compute in.

Sources: NVIDIA, "Train With Mixed Precision" (docs.nvidia.com/deeplearning/performance/
mixed-precision-training): tensor cores for float16 from compute capability 7.0 (Volta), for
bfloat16 from 8.0 (Ampere). Keras, "Mixed precision" guide: variables stay float32; float16 needs
loss scaling, which Keras' `LossScaleOptimizer` adds by itself in `compile()`; bfloat16 has
float32's range and needs none. Some cards of capability 7.5 have no tensor cores, and are 2 to 4
times slower in float16 (tensorflow#44191): `system.cards`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpukeras.system.cards import find_chip_without_tensor_cores

FLOAT16_FROM = 7.0
BFLOAT16_FROM = 8.0
TF32_FROM = 8.0


@dataclass(frozen=True)
class Precision:
    """A Keras dtype policy and why it was chosen."""

    policy: str
    reason: str


@dataclass(frozen=True)
class Gpu:
    """What of a GPU decides how it computes.

    Args:
        capability: Its compute capability, such as "8.6", or "" if unknown.
        name: The name that its driver tells, or "" if unknown.
    """

    capability: str
    name: str = ""

    @property
    def tensor_cores(self) -> float | None:
        """The capability that its tensor cores have; 0 without them, None if unknown."""
        return 0.0 if self.lacking_chip else parse_capability(self.capability)

    @property
    def lacking_chip(self) -> str:
        """Its chip, if that has no tensor cores though its capability has them; or ""."""
        return find_chip_without_tensor_cores(self.name)


def choose_policy(requested: str, gpus: Sequence[Gpu]) -> Precision:
    """Chooses the policy for these GPUs; with several, the weakest decides.

    Args:
        requested: "auto" or a policy's name, which is used on any hardware.
        gpus: The GPUs to be used. An empty sequence means the CPU.
    """
    known = [gpu for gpu in gpus if gpu.tensor_cores is not None]
    weakest = min(known, key=lambda gpu: gpu.tensor_cores or 0.0, default=None)
    if len(known) < len(gpus):
        policy, reason = "float32", "the GPU's compute capability is not known"
    elif weakest is None:
        policy, reason = "float32", "the CPU computes it fastest"
    else:
        policy, reason = _suit(weakest, len(gpus))
    if requested != "auto":
        policy, reason = requested, _judge_wish(requested, weakest)
    return Precision(policy, reason)


def parse_capability(text: str) -> float | None:
    """Returns the compute capability as a number: "8.6" is 8.6; None if unknown."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _suit(gpu: Gpu, count: int) -> tuple[str, str]:
    if gpu.lacking_chip:
        return "float32", f"{_explain_chip(gpu)}: float16 takes 2 to 4 times as long as float32"
    capability = gpu.tensor_cores or 0.0
    whose = "compute capability" if count == 1 else "the weakest GPU's compute capability"
    shown = f"{whose} {capability:.1f}"
    if capability >= BFLOAT16_FROM:
        return "mixed_bfloat16", f"{shown} has tensor cores for bfloat16 (from {BFLOAT16_FROM})"
    if capability >= FLOAT16_FROM:
        return "mixed_float16", f"{shown} has tensor cores for float16 (from {FLOAT16_FROM})"
    return "float32", f"{shown} has no tensor cores (from {FLOAT16_FROM})"


def _explain_chip(gpu: Gpu) -> str:
    return f"{gpu.name} has no tensor cores (chip {gpu.lacking_chip})"


def _judge_wish(requested: str, gpu: Gpu | None) -> str:
    """Returns the reason for an explicit policy, with a warning if the hardware lacks support."""
    needed = {"mixed_float16": FLOAT16_FROM, "mixed_bfloat16": BFLOAT16_FROM}.get(requested)
    if requested == "float64":
        return "as asked; on a GPU float64 is many times slower than float32"
    if needed is None:
        return "as asked"
    if gpu is None:
        return f"as asked; fast on a GPU of compute capability {needed} or more, slow on a CPU"
    if gpu.lacking_chip:
        return f"as asked; {_explain_chip(gpu)}, so it will be slow"
    if (gpu.tensor_cores or 0.0) < needed:
        below = f"compute capability {gpu.capability} is below {needed}"
        return f"as asked; {below}, so it will be slow"
    return "as asked"
