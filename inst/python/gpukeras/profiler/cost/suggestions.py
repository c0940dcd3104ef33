"""Suggests changes that make a model cheaper if one kind of layer dominates, with the numbers.

Each of these changes the model: it has to be trained again, and its accuracy checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.core.messages import count_of, mib, percent
from gpukeras.profiler.cost.layer_flops import Call, attention_scores, keras_kind, layer_flops
from gpukeras.profiler.cost.memory import MemoryNeed
from gpukeras.profiler.cost.watcher import Seen

DOMINATES = 0.2  # share of the model's FLOPs or parameters from which a change pays off
WORTH = 2.0  # least factor by which a change must reduce a layer's FLOPs
TIGHT = 0.25  # of the memory: below, no saving is suggested
NAMED = 3


@dataclass(frozen=True)
class Suggestion:
    """A cheaper alternative.

    Args:
        id: "separable", "pooling", "shorter", "mixed_precision" or "smaller_batch".
        layers: The layers it applies to, those with the largest saving first.
        text: What to do, and what it saves.
        flops_share: Share of the model's FLOPs that it saves, 0 to 1.
        params_share: Share of the model's parameters that it saves, 0 to 1.
        bytes_saved: Bytes of the training's memory that it saves; None if it does not target
            memory.
    """

    id: str
    layers: tuple[str, ...]
    text: str
    flops_share: float = 0.0
    params_share: float = 0.0
    bytes_saved: float | None = None


@dataclass(frozen=True)
class _Saving:
    """The effect of changing one layer: FLOPs before, FLOPs and parameters saved."""

    name: str
    flops: float
    flops_saved: float
    params_saved: float


def suggest_savings(seen: Sequence[Seen], flops: float, params: float) -> list[Suggestion]:
    """Suggests cheaper layers, with their savings.

    Args:
        seen: The layers of a traced model.
        flops: The model's FLOPs, for the trace's batch.
        params: The model's parameters.
    """
    proposals = [
        _suggest_separable(seen, flops, params),
        _suggest_pooling(seen, params),
        _suggest_shorter(seen, flops),
    ]
    suggestions = [proposal for proposal in proposals if proposal is not None]
    return sorted(
        suggestions, key=lambda proposal: -max(proposal.flops_share, proposal.params_share)
    )


def suggest_memory(need: MemoryNeed, policy: str) -> list[Suggestion]:
    """Suggests ways to save memory, if it is short or if a GPU would hold more."""
    if need.total_bytes is None or need.available_bytes is None:
        return []
    suggestions = []
    if need.total_bytes > need.available_bytes:
        suggestions.append(_suggest_batch(need))
    half = need.batch_size * (need.row_bytes or 0) / 2
    tight = need.total_bytes > need.available_bytes * TIGHT and half > need.total_bytes / 4
    if tight and policy == "float32" and not need.device.startswith("CPU"):
        text = (
            "Activations are most of the memory: under mixed precision (gpu_setup(precision = "
            f'"auto") before the model is made) they take about half, {mib(half)} less.'
        )
        suggestions.append(Suggestion("mixed_precision", (), text, bytes_saved=half))
    return suggestions


def _suggest_batch(need: MemoryNeed) -> Suggestion:
    largest = need.largest_batch or 0
    more = (need.total_bytes or 0) - (need.available_bytes or 0)
    if largest:
        text = (
            f"A batch of {count_of(need.batch_size, 'row')} needs {mib(more)} "
            f"more than there is: "
            f"up to about {count_of(largest, 'row')} fit. For the updates of larger "
            f"batches compile the "
            "optimizer with `gradient_accumulation_steps`."
        )
    else:
        text = (
            "Weights, gradients and optimizer alone need more memory than there is: an optimizer "
            "that keeps less (SGD, Adafactor) or a smaller model."
        )
    return Suggestion("smaller_batch", (), text, bytes_saved=more)


# Convolutions ------------------------------------------------------------------------------------


def _suggest_separable(seen: Sequence[Seen], flops: float, params: float) -> Suggestion | None:
    """Suggests depthwise and pointwise convolutions for k x k ones (Howard et al. 2017)."""
    savings = sorted(_separable_savings(seen), key=lambda saving: -saving.flops_saved)
    before, saved = (
        sum(saving.flops for saving in savings),
        sum(saving.flops_saved for saving in savings),
    )
    if not savings or before < DOMINATES * flops:
        return None
    fewer = sum(saving.params_saved for saving in savings) / params
    names = [saving.name for saving in savings]
    text = (
        f"{_name_layers(names, 'convolution')} {_verb(names, 'compute')} "
        f"{percent(before / flops)} of the FLOPs. As SeparableConv they need "
        f"{before / (before - saved):.1f} times fewer: the model {percent(saved / flops)} fewer, "
        f"and {percent(fewer)} fewer parameters. Time falls by less, as depthwise convolutions "
        "are bound by memory."
    )
    return Suggestion("separable", tuple(names), text, saved / flops, fewer)


def _separable_savings(seen: Sequence[Seen]) -> Iterator[_Saving]:
    for watched in seen:
        if keras_kind(watched.layer) not in ("Conv1D", "Conv2D") or watched.layer.groups > 1:
            continue
        taps, filters = math.prod(watched.layer.kernel_size), watched.layer.filters
        first = watched.layer.data_format == "channels_first"
        channels = watched.calls[0].first[1 if first else -1]
        before = 2 * taps * channels * filters
        after = 2 * channels * (taps + filters)
        if taps > 1 and before >= WORTH * after:
            positions = sum(math.prod(call.output) / filters for call in watched.calls)
            flops = sum(layer_flops(call) or 0 for call in watched.calls)
            yield _Saving(watched.name, flops, positions * (before - after), (before - after) / 2)


# Dense layers and attention ----------------------------------------------------------------------


def _suggest_pooling(seen: Sequence[Seen], params: float) -> Suggestion | None:
    """Suggests pooling in place of a dense layer on a flattened image (Lin et al. 2013)."""
    for flat, dense in _flattened(seen):
        shape = flat.calls[0].first
        positions, width = math.prod(shape[1:-1]), shape[-1]
        numbers = width * dense.layer.units
        saved = (positions - 1) * numbers
        if saved >= DOMINATES * params:
            text = (
                f"{dense.name} holds {percent(positions * numbers / params)} of the parameters, "
                f"some for each of {positions:g} positions. With GlobalAveragePooling in place of "
                f"{flat.name} it needs {positions:g} times fewer: the model "
                f"{percent(saved / params)} fewer."
            )
            return Suggestion("pooling", (dense.name,), text, params_share=saved / params)
    return None


def _flattened(seen: Sequence[Seen]) -> Iterator[tuple[Seen, Seen]]:
    """Yields each Flatten of positions and channels with the dense layer after it."""
    before: Seen | None = None
    for watched in seen:
        kind = keras_kind(watched.layer)
        if kind == "Flatten":
            before = watched if len(watched.calls[0].first) > 2 else None
        elif kind == "Dense":
            if before and watched.calls[0].first == before.calls[0].output:
                yield before, watched
            before = None


def _suggest_shorter(seen: Sequence[Seen], flops: float) -> Suggestion | None:
    """Suggests shorter inputs: attention grows with the squared length (Vaswani et al. 2017)."""
    attentions = [
        (_score_flops(watched.calls), watched) for watched in seen if _is_attention(watched.layer)
    ]
    scores = sum(each for each, _ in attentions)
    if not attentions or scores < DOMINATES * flops:
        return None
    names = [watched.name for _, watched in sorted(attentions, key=lambda pair: -pair[0])]
    text = (
        f"Scores between all pairs of positions in {_name_layers(names, 'attention layer')} "
        f"are {percent(scores / flops)} of the FLOPs, and grow with the square of the length: "
        "half the length (by pooling or strides before them) saves "
        f"{percent(0.75 * scores / flops)}."
    )
    return Suggestion("shorter", tuple(names), text, 0.75 * scores / flops)


def _is_attention(layer: Any) -> bool:
    return keras_kind(layer) in ("MultiHeadAttention", "GroupedQueryAttention")


def _score_flops(calls: Sequence[Call]) -> float:
    """Sums over calls whose keys and queries have the same length; only these can be shortened."""
    return sum(attention_scores(call) for call in calls)


def _name_layers(names: Sequence[str], kind: str) -> str:
    if len(names) == 1:
        return names[0]
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)} {kind}s ({', '.join(names[:NAMED])}{more})"


def _verb(names: Sequence[str], verb: str) -> str:
    return verb + ("s" if len(names) == 1 else "")
