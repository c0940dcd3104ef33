"""Derives advice from a profile, in order of expected gain; it reads facts and changes nothing.

Expected gains follow Amdahl's law: a remedy removes or shrinks a share of the step. Advice is given
from the shares at which TensorFlow's own profiler reports a bottleneck: 5 % waiting for input is
"moderately", 20 % "highly input-bound"; 15 % launching is "highly kernel-launch bound"
(`bottleneck_analysis.cc`, `op_stats_to_input_pipeline_analysis.cc`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gpukeras.backend.mixed_precision import Gpu, choose_policy
from gpukeras.core.messages import percent
from gpukeras.profiler.bottleneck import Shares
from gpukeras.profiler.cost.suggestions import Suggestion
from gpukeras.profiler.layer_times import OPTIMIZER, LayerTime
from gpukeras.profiler.report import Advice, InputCost

INPUT_SHARE = 0.05
LAUNCH_SHARE = 0.15
LAYER_SHARE = 0.30  # of the kernel time: layers that dominate
WORTH = 1.1  # smallest expected gain that is reported
FIXED_SHARE = 0.10  # of a step: the target of a larger batch size
MOST_TIMES = 64  # largest factor on the batch size that the measurements can be extrapolated to
UPDATES = 10  # fewest per epoch, as in gpu_batch_size()
ON_HOST = ("read", "decode", "gather")  # stages that rows from a user's function pass through
SHORT_EPOCH = 16  # steps: in shorter epochs the work per epoch weighs as much as the steps
HALF = 0.5  # of the kernel time: half the bytes take half the time where memory is the limit


@dataclass(frozen=True)
class AdviceFacts:
    """The measurements and settings that advice is derived from.

    Args:
        shares: Shares of a step, see `bottleneck.split_step()`.
        engine: The engine that trained.
        engines: Other engines that can train this model.
        batch_size: Rows per step.
        rows: Number of training rows, or None if unknown.
        device: The model's device, such as "GPU:0".
        gpus: Number of GPUs that TensorFlow sees.
        capability: The GPU's compute capability, such as "8.6", or "".
        card: The name that the GPU's driver tells, or "".
        policy: Keras' dtype policy of the model.
        input: Cost of the input.
        source: "function" or "pipeline" (the user's own), or "rows" (which gpukeras gathers).
        mode: Mode of the plan, see `PipelinePlan`.
        eager: Whether the model was compiled with `run_eagerly`.
        layers: Kernel time by layer.
        suggestions: Cheaper layers, from the model's cost.
    """

    shares: Shares
    engine: str
    engines: tuple[str, ...]
    batch_size: int
    rows: int | None
    device: str
    gpus: int
    capability: str
    card: str
    policy: str
    input: InputCost
    source: str
    mode: str
    eager: bool = False
    layers: Sequence[LayerTime] = ()
    suggestions: Sequence[Suggestion] = ()

    @property
    def short(self) -> bool:
        """Whether gpukeras gathers the rows and an epoch is too short to judge its input."""
        few = self.rows is not None and self.rows < SHORT_EPOCH * self.batch_size
        return few and self.source == "rows"

    @property
    def launch(self) -> float:
        """Share of the step that is spent launching; 0 if unknown."""
        return (self.shares["host"] or 0.0) + (self.shares["idle"] or 0.0)

    @property
    def kernels(self) -> float:
        """Share of the step that is spent computing; 0 if unknown."""
        return self.shares["kernels"] or 0.0

    @property
    def optimizer(self) -> float:
        """Share of the step that the optimizer takes; it does not depend on the batch size."""
        share = sum(row.share for row in self.layers if row.layer == OPTIMIZER)
        return share * self.kernels


def plan_advice(facts: AdviceFacts) -> tuple[Advice, ...]:
    """Returns all advice with an expected gain of at least `WORTH`, the largest gain first."""
    proposals = [
        _advise_device(facts),
        _advise_engine(facts),
        _advise_batch(facts),
        _advise_input(facts),
        _advise_precision(facts),
        *(_advise_layers(facts, each) for each in facts.suggestions),
    ]
    kept = [
        proposal
        for proposal in proposals
        if proposal is not None and (proposal.gain is None or proposal.gain >= WORTH)
    ]
    return tuple(
        sorted(kept, key=lambda proposal: inf if proposal.gain is None else -proposal.gain)
    )


def _advise_device(facts: AdviceFacts) -> Advice | None:
    if not facts.gpus or not facts.device.startswith("CPU"):
        return None
    text = "Train on the GPU: the model is on the CPU. gpu_check() says why."
    return Advice("device", text, f"TensorFlow sees {facts.gpus} GPU(s).", None)


def explain_short_epoch(facts: AdviceFacts) -> list[str]:
    """Returns a note on the shares if an epoch has only a few steps."""
    if not facts.short:
        return []
    return [
        f"An epoch has fewer than {SHORT_EPOCH} steps: its order and its rows are made once an "
        "epoch and count for much here; gpu_fit() also has Keras' own work between epochs."
    ]


# Launching ---------------------------------------------------------------------------------------


def _advise_engine(facts: AdviceFacts) -> Advice | None:
    """Advises a graph instead of eager mode, many batches per call, or one XLA program."""
    if facts.eager:
        why = f"Python runs each operation; launching takes {percent(facts.launch)} of the step."
        return Advice(
            "eager", "Compile the model without `run_eagerly`.", why, free_gain(facts.launch)
        )
    many = {"keras": "graph_loop", "graph_loop": "compiled"}.get(facts.engine, "")
    if facts.launch < LAUNCH_SHARE or many not in facts.engines:
        return None
    why = f"launching takes {percent(facts.launch)} of the step"
    gain = free_gain(facts.launch)
    if facts.engine == "keras":
        text = 'Use `engine = "auto"`: many batches a call instead of one.'
        return Advice(
            "engine", text, f"With a call for each batch {why}.", gain, {"engine": "auto"}
        )
    text = 'Use `engine = "compiled"`: XLA makes one program of the step.'
    return Advice("compiled", text, f"Op by op {why}.", gain, {"engine": "compiled"})


def _advise_batch(facts: AdviceFacts) -> Advice | None:
    """Advises a larger batch size if much of a step does not depend on its rows."""
    fixed = facts.launch + facts.optimizer
    if fixed < LAUNCH_SHARE:
        return None
    times = choose_times(fixed, facts.batch_size, facts.rows)
    if times <= 1:
        return None
    part, share = "launch overhead", facts.launch
    if facts.optimizer > share:
        part, share = "the optimizer's update", facts.optimizer
    size = times * facts.batch_size
    text = (
        f"Use `batch_size = {size}` instead of {facts.batch_size}. That is fewer updates an "
        "epoch: watch the validation loss."
    )
    why = f"{part.capitalize()} is {percent(share)} of the step, whatever the batch size."
    return Advice("batch_size", text, why, batch_gain(fixed, times), {"batch_size": size})


def choose_times(fixed: float, batch_size: int, rows: int | None) -> int:
    """Returns the factor for the batch size: a power of two that makes the fixed share small.

    Args:
        fixed: Share of the step that does not depend on its rows.
        batch_size: Rows per step now.
        rows: Number of training rows, or None if unknown.
    """
    most = inf if rows is None else rows // (UPDATES * batch_size)
    times = 1
    while 2 * times <= min(most, MOST_TIMES) and _fixed_after(fixed, times) > FIXED_SHARE:
        times *= 2
    return times


def batch_gain(fixed: float, times: int) -> float:
    """Returns the factor on rows per second if the batch size grows by `times`."""
    return times / (fixed + times * (1.0 - fixed))


def free_gain(share: float) -> float:
    """Returns the factor on rows per second if a share of the step took no time."""
    return 1.0 / max(1.0 - share, 0.01)


def _fixed_after(fixed: float, times: int) -> float:
    return fixed / (fixed + times * (1.0 - fixed))


# Input -------------------------------------------------------------------------------------------


def _advise_input(facts: AdviceFacts) -> Advice | None:
    """Advises how to make the slowest stage of the input cheaper."""
    waited = facts.shares["input"] or 0.0
    if waited < INPUT_SHARE or facts.short:
        return None
    stages = facts.input.stages
    slowest = max(stages, key=lambda stage: stage.batch_s, default=None)
    text = _choose_remedy(facts, slowest.stage if slowest else "")
    why = f"Waiting for rows takes {percent(waited)} of the step"
    if slowest is not None:
        why += f"; of the pipeline alone, {percent(slowest.share)} is {slowest.what}"
    return Advice("input", text, f"{why}.", free_gain(waited))


def _choose_remedy(facts: AdviceFacts, stage: str) -> str:
    if stage in ON_HOST and facts.source == "function":
        return (
            "Use gpu_dataset(cache = TRUE): your function is called once, not in every epoch. "
            "Or give more rows a call."
        )
    if stage == "pull" and facts.source == "pipeline":
        return (
            "Use gpu_dataset(cache = TRUE), or num_parallel_calls and prefetch() in your pipeline."
        )
    if stage in ("augment", "map"):
        return f"Make `{stage}` cheaper: it runs for every batch. Or do it once beforehand."
    if facts.mode == "streamed":
        return 'Use gpu_dataset(cache = "host") or "disk": rows are made anew in each epoch.'
    if facts.mode == "staged" and not facts.device.startswith("CPU"):
        return 'Use gpu_dataset(cache = "device"): the rows then live in the GPU\'s memory.'
    return "Give the model fewer or smaller columns: its rows are gathered in each epoch."


# Kernels -----------------------------------------------------------------------------------------


def _advise_precision(facts: AdviceFacts) -> Advice | None:
    if facts.policy != "float32" or facts.device.startswith("CPU"):
        return None
    policy = choose_policy("auto", [Gpu(facts.capability, facts.card)]).policy
    if policy == "float32":
        return None
    text = f'Use gpu_setup(precision = "{policy}") before the model is made.'
    why = (
        f"Kernels take {percent(facts.kernels)} of the step, in float32; numbers of half the "
        "bytes take half the time where memory is the limit, and less on tensor cores."
    )
    return Advice("precision", text, why, free_gain(facts.kernels * HALF))


def _advise_layers(facts: AdviceFacts, suggestion: Suggestion) -> Advice | None:
    """Advises cheaper layers where some dominate; their time shrinks at most as their FLOPs do."""
    share = sum(row.share for row in facts.layers if row.layer in suggestion.layers)
    saved = min(share, suggestion.flops_share)
    if share < LAYER_SHARE or not saved:
        return None
    named = " and ".join(suggestion.layers[:2])
    why = f"Of the kernels' time {percent(share)} is {named}."
    return Advice(suggestion.id, suggestion.text, why, free_gain(facts.kernels * saved))
