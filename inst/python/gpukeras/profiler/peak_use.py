"""Compares the FLOP/s of a training step with the peak of the card."""

from __future__ import annotations

from dataclasses import dataclass

from gpukeras.backend import runtime
from gpukeras.core.errors import GpuKerasError
from gpukeras.core.keras_types import Model
from gpukeras.profiler.cost.model_cost import STEP, count_flops
from gpukeras.profiler.placement import read_card, read_policy
from gpukeras.system.cards import Peak, find_peak


@dataclass(frozen=True)
class PeakUse(Peak):
    """The share of a card's peak that a training reaches (model FLOP utilization).

    The model's FLOPs are counted by formulas, and a step as three forward passes, as in
    Chowdhery et al. 2022 (PaLM), appendix B: what a device recomputes does not count.

    Args:
        reached: 10^12 FLOP per second of the model's steps.
        share: Of the peak, 0 to 1.
    """

    reached: float
    share: float


def measure_peak_use(
    model: Model, device: str, batch_size: int, step_s: float
) -> tuple[PeakUse | None, str]:
    """Returns the use of the card's peak, or None and why it is not determined.

    Args:
        model: A built model.
        device: Its device, such as "GPU:0".
        batch_size: Rows of a step.
        step_s: Seconds of a step.
    """
    card = read_card(device)
    # What JAX multiplies float32 with depends on its version, so its peak is not known.
    if not card or runtime.backend() != "tensorflow":
        return None, ""
    peak = find_peak(card, read_policy(model), runtime.tensor_float_32())
    if peak is None:
        return None, f"The peak of {card} for {read_policy(model)} is not listed."
    try:
        flops = count_flops(model)
    except GpuKerasError:
        flops = None
    if flops is None:
        return None, "The share of the card's peak is not known: a layer's FLOPs are not."
    return compare_with_peak(peak, STEP * flops * batch_size, step_s), ""


def compare_with_peak(peak: Peak, step_flops: float, step_s: float) -> PeakUse:
    """Returns the use of a peak by steps of so many FLOPs and seconds."""
    reached = step_flops / step_s / 1e12
    return PeakUse(peak.card, peak.dtype, peak.tflops, peak.source, reached, reached / peak.tflops)
