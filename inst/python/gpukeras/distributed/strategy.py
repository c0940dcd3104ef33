"""The replicas that train together: one on the model's device, or several.

    open_strategy(devices) --> Strategy: shares, agreement, and how a model is held and run

A training uses its strategy in the same way for one replica and for several.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpukeras.backend import devices, keras_private, runtime, tensor_ops
from gpukeras.backend.features import require_feature
from gpukeras.core.attributes import replaced
from gpukeras.core.errors import ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import FitSpec
from gpukeras.data.loader.sharding import BatchSharding, check_batch_size, round_batch_size
from gpukeras.data.plan import AS_ASKED, PipelinePlan
from gpukeras.distributed import session
from gpukeras.distributed.cluster_config import CONTROL
from gpukeras.distributed.consensus import DistributedConsensus, LocalConsensus
from gpukeras.distributed.device_selection import asks_several, choose_devices, parse_devices
from gpukeras.distributed.engines import ReplicatedEngines
from gpukeras.distributed.keras_internals import (
    Reduction,
    hold_copies,
    hold_losses,
    hold_reduction,
    open_mirrored,
    require_versions,
)
from gpukeras.distributed.replicated_step import ReplicatedStep, gathers_metrics
from gpukeras.engine.engine_cache import open_engines
from gpukeras.engine.engines import Engines
from gpukeras.engine.rowwise import explain_layer_metrics, explain_loss, explain_metrics
from gpukeras.engine.train_step import Averages, NonFiniteMonitor, TrainingStep, single_replica
from gpukeras.models.losses import sums_rows
from gpukeras.models.state import state_variables
from gpukeras.system import environment

NOT_JOINED = (
    "This process was started by gpu_launch() and trained alone: gpu_cluster() before the first "
    "model makes it a worker."
)


@dataclass
class Strategy:
    """The replicas of a model.

    Args:
        tf_strategy: TensorFlow's strategy, or None for a single replica.
        shares: The batch sharding over replicas, or None.
        agreement: The decisions that their processes make together.
        workers: Number of processes.
        notes: Notes for the user, sentences.
    """

    tf_strategy: Any = None
    shares: BatchSharding | None = None
    agreement: LocalConsensus = field(default_factory=LocalConsensus)
    workers: int = 1
    notes: tuple[str, ...] = ()
    _reduction: Reduction | None = None

    @property
    def replicas(self) -> int:
        """Number of replicas, on all computers."""
        return 1 if self.shares is None else self.shares.replicas

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of this process's replicas; () for the model's own device."""
        return () if self.shares is None else self.shares.devices

    def explain(self, model: Model) -> tuple[str, ...]:
        """Returns notes on a model's training for the user, as sentences."""
        return (*self.notes, *self.agreement.explain(), *self.explain_sums(model))

    def explain_sums(self, model: Model) -> list[str]:
        """Returns sentences about a model's results that may differ from those on one device."""
        if self.shares is None:
            return []
        notes = []
        if loss := explain_loss(model, sums=True):
            notes.append(
                f"The mean of the devices' losses may differ from the loss on one device: {loss}."
            )
        added = explain_layer_metrics if gathers_metrics(model) else explain_metrics
        if metric := added(model):
            notes.append(
                "Metrics are added up over the devices, and may differ from those on one device: "
                f"{metric}."
            )
        return notes

    def place(self, device: str) -> str:
        """Returns the device of the model: the first of the strategy's devices."""
        return device if self.shares is None else self.shares.devices[0]

    def own_spec(self, spec: FitSpec) -> FitSpec:
        """Returns the options of this process: only the chief writes files."""
        if self.agreement.is_chief:
            return spec
        return replace(spec, checkpoint=None, tensorboard=None)

    def scale_rate(self, how: str) -> float:
        """Returns the factor of the learning rate; see `FitSpec.rate_scaling`."""
        return {"none": 1.0, "linear": float(self.replicas), "sqrt": self.replicas**0.5}[how]

    def fit_plan(self, plan: PipelinePlan, data: Any, requested: int | str | None) -> PipelinePlan:
        """Returns the plan with a batch size that is a multiple of the number of replicas.

        Args:
            plan: The pipeline plan.
            data: The dataset.
            requested: The requested batch size, or None.

        Raises:
            SpecError: if the requested batch size is no such multiple.
        """
        if plan.batch_size % self.replicas == 0:
            return plan
        asked = isinstance(requested, (int, float)) or data.spec.batch_size != "auto"
        if asked and plan.batch_reason == AS_ASKED:
            check_batch_size(plan.batch_size, self.replicas)
        size = round_batch_size(plan.batch_size, self.replicas)
        reason = f"{plan.batch_reason}; {self.replicas} replicas share it"
        return replace(data.plan(plan.device, size), batch_reason=reason)

    @contextmanager
    def hold(self, model: Model) -> Iterator[None]:
        """Prepares a model whose variables exist; afterwards it is a plain one with new values."""
        if self.shares is None:
            with single_replica(model):
                yield
            return
        with ExitStack() as held:
            held.enter_context(_synchronized(model))
            if not sums_rows(model.loss):
                held.enter_context(hold_losses())
            self._reduction = held.enter_context(hold_reduction(model.optimizer))
            held.enter_context(hold_copies(state_variables(model).values(), self.shares))
            yield

    @contextmanager
    def hold_weights(self, model: Model) -> Iterator[None]:
        """Prepares a model for predictions only; it need not be compiled."""
        assert self.shares is not None  # one device predicts without a strategy
        with hold_copies(model.variables, self.shares):
            yield

    def open_training(
        self,
        model: Model,
        batch_size: int,
        device: str,
        *,
        microbatch_size: int | None,
        watch: NonFiniteMonitor,
        averages: Averages | None,
    ) -> Engines:
        """Returns the engines that train.

        Args:
            model: A compiled model whose variables exist.
            batch_size: Rows per batch, on all devices together.
            device: The device of the model.
            microbatch_size: See `TrainingStep`.
            watch: See `TrainingStep`.
            averages: See `TrainingStep`.
        """
        if self.shares is None:
            step = TrainingStep(model, microbatch_size, watch, averages)
            return open_engines(model, "train", batch_size, device, step)
        parts = model, "train", self.tf_strategy, self.shares
        replicated = ReplicatedStep(
            *parts, reduction=self._reduction, watch=watch, averages=averages
        )
        return ReplicatedEngines(model, "train", batch_size, device, replicated)

    def open_evaluation(self, model: Model, batch_size: int, device: str) -> Engines:
        """Returns the engines that evaluate.

        Args:
            model: A compiled model whose variables exist.
            batch_size: Rows per batch, on all devices together.
            device: The device of the model.
        """
        if self.shares is None:
            return open_engines(model, "test", batch_size, device)
        step = ReplicatedStep(model, "test", self.tf_strategy, self.shares)
        return ReplicatedEngines(model, "test", batch_size, device, step)

    def check(self, model: Model, engine: str = "auto") -> None:
        """Refuses models and engines that work on one device only.

        Raises:
            SpecError, ModelError: for those.
        """
        if self.shares is None:
            return
        if engine == "compiled":
            raise SpecError(
                'engine = "compiled" trains on one device: XLA compiles a program for one.',
                hint='Use `engine = "auto"`.',
                arg="engine",
            )
        if model.run_eagerly or tensor_ops.overrides(model, "make_train_function"):
            what = "is compiled with run_eagerly" if model.run_eagerly else "has its own function"
            raise ModelError(f"The model {what}, and such a one trains on one device.", arg="model")


def open_strategy(requested: Any = None, trains: bool = False) -> Strategy:
    """Returns the strategy of a training, an evaluation or predictions.

    Args:
        requested: The user's `devices`; None for the model's own device.
        trains: Whether None means all GPUs of each worker where this process is in a cluster. An
            evaluation or prediction gives the same on each worker without the others.

    Raises:
        SpecError, NoDeviceError: for devices that do not exist.
        RuntimeMissingError: for versions that were not tested on several devices.
        ClusterError: if a worker has been lost.
    """
    cluster = session.current()
    if cluster is not None and (trains or requested is not None):
        if requested not in (None, "all"):
            raise SpecError(
                "In a cluster every worker trains on all of its visible GPUs.",
                hint="Leave `devices` out, or hide GPUs from a worker by CUDA_VISIBLE_DEVICES.",
                arg="devices",
            )
        cluster.check()
        agreement = DistributedConsensus(cluster.channel, cluster.times)
        return Strategy(cluster.strategy, cluster.shares, agreement, cluster.spec.size)
    if requested is None:
        launched = trains and CONTROL in environment.python_variables()
        return Strategy(notes=(NOT_JOINED,) if launched else ())
    wanted = parse_devices(requested)
    if asks_several(wanted):
        require_feature("devices")
    names = choose_devices(
        wanted,
        [devices.short_name(device) for device in runtime.logical_devices("GPU")],
        [devices.short_name(device) for device in runtime.logical_devices("CPU")],
    )
    if len(names) == 1:
        _check_single(names[0])
        return Strategy()
    require_feature("devices")
    require_versions()
    return Strategy(open_mirrored(names), BatchSharding(len(names), 0, names))


def _check_single(name: str) -> None:
    if name != devices.current().device:
        raise SpecError(
            f"`devices` names {name} alone, and models are on {devices.current().device}.",
            hint=f'Use gpu_setup(device = "{name}") or with_device("{name}", ) for a single one.',
            arg="devices",
        )


@contextmanager
def _synchronized(model: Model) -> Iterator[None]:
    """Makes batch normalisation use the statistics of the whole batch, not of a replica's part."""
    layers = [
        layer
        for layer in keras_private.list_layers(model)
        if getattr(layer, "synchronized", True) is False
    ]
    with ExitStack() as held:
        for layer in layers:
            held.enter_context(replaced(layer, synchronized=True))
        yield
