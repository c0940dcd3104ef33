"""Lists devices, applies `gpu_setup()`, and reads the memory in use.

R names devices as `gpu_devices()` lists them (TensorFlow's physical numbering). If some GPUs are
hidden, TensorFlow renumbers the others: `current().device` is its own name, for
`runtime.on_device()`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.backend import runtime
from gpukeras.backend.card_waiting import CONTEXT_MIB, wait_for_card
from gpukeras.backend.config import (
    Device,
    Setting,
    SetupFacts,
    SetupPlan,
    choose_backend,
    choose_device,
    choose_jit,
    memory_in_effect,
    parse_device,
    place_device,
    plan_setup,
)
from gpukeras.backend.cuda_preload import Preload, prepare
from gpukeras.backend.env_vars import FORCE_GROWTH, EnvironmentChange, sync_environment
from gpukeras.core.errors import SpecError
from gpukeras.core.options import SetupSpec, WaitSpec
from gpukeras.system import environment, host

CONTEXT_BYTES = CONTEXT_MIB * 2**20


@dataclass(frozen=True)
class Setup:
    """The settings in effect after `gpu_setup()`.

    Args:
        device: TensorFlow's own name of the device to compute on, for `runtime.on_device()`.
        precision: Keras' dtype policy.
        jit: "auto", or whether XLA compiles.
        seed: The seed, or None.
        deterministic: Whether only deterministic kernels run.
    """

    device: str
    precision: str = "float32"
    jit: str | bool = "auto"
    seed: int | None = None
    deterministic: bool = False


@dataclass(frozen=True)
class SetupRecord:
    """The result of `gpu_setup()`.

    Args:
        device: The chosen device, as `gpu_devices()` names it.
        precision: Keras' dtype policy.
        settings: Every setting with its status and reason.
        already_started: Whether TensorFlow had started its devices before.
        notes: Further notes, sentences.
    """

    device: str
    precision: str
    settings: tuple[Setting, ...]
    already_started: bool
    notes: tuple[str, ...]


_current: Setup | None = None  # set by gpu_setup() and with_device()


def current() -> Setup:
    """Returns the setup in effect; without `gpu_setup()`, the first visible GPU or the CPU."""
    if _current is not None:
        return _current
    visible = runtime.visible_devices("GPU")
    if not visible:
        return Setup("CPU:0")
    capabilities = [capability_text(runtime.device_details(gpu)) for gpu in visible]
    cuda = str(runtime.build_info().get("cuda_version", ""))
    return Setup("GPU:0", jit=choose_jit(capabilities, cuda))


# Reading -----------------------------------------------------------------------------------------


def read_devices() -> list[Device]:
    """Returns all physical devices, without starting them."""
    sync_environment()
    gpus = runtime.physical_devices("GPU")
    details = [runtime.device_details(gpu) for gpu in gpus]
    labels = [str(detail.get("device_name", "")) for detail in details]
    memory = [None if gpu is None else gpu.total_bytes for gpu in _match_nvml(labels)]
    visible = runtime.visible_devices("GPU")
    return [_read_cpu(cpu) for cpu in runtime.physical_devices("CPU")] + [
        Device(short_name(gpu), "GPU", label, capability_text(detail), size, gpu in visible)
        for gpu, label, detail, size in zip(gpus, labels, details, memory, strict=True)
    ]


def read_memory() -> list[dict[str, Any]]:
    """Returns current bytes, peak bytes and the limit of each visible device; starts nothing.

    For the CPU these are this process's resident memory and the computer's memory. Before
    TensorFlow has started, the memory that it holds on a GPU is not determined (None).
    """
    now, peak = host.read_process_memory()
    cpu = _memory_record("CPU:0", now, peak, host.read_total_memory())
    gpus = [device for device in read_devices() if device.kind == "GPU" and device.visible]
    return [cpu] + [_read_gpu_memory(gpu, index) for index, gpu in enumerate(gpus)]


def free_bytes(device: str) -> float | None:
    """Returns the bytes that this process may still use on a device, or None if not determined.

    A framework keeps what it has taken of a GPU: the part that it does not use now counts as free.

    Args:
        device: TensorFlow's own name, such as `current().device`.
    """
    kind, index = parse_device(device)
    if kind == "CPU":
        return host.read_free_memory()
    record, limit = _read_gpu(index or 0)
    if record is None and limit is None:
        return None
    used, taken = 0, 0.0
    if runtime.started():
        info = runtime.memory_info(f"GPU:{index or 0}")
        used, taken = info["current"], float(info["peak"])
    left = [] if limit is None else [limit - used]
    if record is not None:
        own = dict(record.processes).get(os.getpid()) or 0.0
        left.append(record.free_bytes + max(taken, own - CONTEXT_BYTES) - used)
    return max(0.0, min(left))


def unheld_bytes(place: int) -> float | None:
    """Returns the bytes of a visible GPU that no process holds, or None if not determined."""
    record = _read_gpu(place)[0]
    return None if record is None else record.free_bytes


def gpu_bytes(device: str) -> float | None:
    """Returns the bytes of a GPU that may be used, free or not; None for a CPU, or if unknown.

    Args:
        device: As of `free_bytes()`.
    """
    kind, index = parse_device(device)
    if kind == "CPU":
        return None
    record, limit = _read_gpu(index or 0)
    known = [] if record is None else [record.total_bytes]
    return min([*known, *([] if limit is None else [limit])], default=None)


def _read_gpu(index: int) -> tuple[host.NvmlGpu | None, float | None]:
    """Returns what the driver says of a visible GPU, and the bytes to which it is limited."""
    gpus = runtime.visible_devices("GPU")
    if not index < len(gpus):
        return None, None
    gpu = gpus[index]
    label = str(runtime.device_details(gpu).get("device_name", ""))
    everyone = runtime.physical_devices("GPU")
    labels = [str(runtime.device_details(device).get("device_name", "")) for device in everyone]
    record = _match_nvml(labels)[everyone.index(gpu)] if label else None
    limit = runtime.usable_bytes(gpu)
    return record, None if limit is None else float(limit)


def reset_peak(device: str) -> float:
    """Resets the peak of the memory held on a GPU; returns what `peak_bytes()` needs to know.

    JAX has no reset: that is the peak of the session, which a later one has to exceed to be known.
    """
    if device.startswith("CPU"):
        return 0.0
    runtime.reset_memory_peak(device)
    info = runtime.memory_info(device)
    return float(info["peak"]) if info["peak"] > info["current"] else 0.0


def peak_bytes(device: str, before: float) -> float | None:
    """Returns the peak of the memory held on a GPU since the reset; None for the CPU or if unknown.

    Args:
        device: The device.
        before: What `reset_peak()` returned.
    """
    if device.startswith("CPU"):
        return None
    peak = float(runtime.memory_info(device)["peak"])
    return None if before and peak <= before else peak


def _read_cpu(cpu: Any) -> Device:
    total = host.read_total_memory()
    return Device(short_name(cpu), "CPU", host.read_cpu_label(), "", total, True)


def _read_gpu_memory(gpu: Device, index: int) -> dict[str, Any]:
    limit = runtime.usable_bytes(runtime.visible_devices("GPU")[index])
    total = gpu.memory_bytes if limit is None else float(limit)
    if not runtime.started():
        return _memory_record(gpu.name, None, None, total)
    held = runtime.memory_info(f"GPU:{index}")
    return _memory_record(gpu.name, float(held["current"]), float(held["peak"]), total)


def _memory_record(
    device: str, now: float | None, peak: float | None, limit: float | None
) -> dict[str, Any]:
    return {"device": device, "current_bytes": now, "peak_bytes": peak, "limit_bytes": limit}


def _match_nvml(labels: Sequence[str]) -> list[host.NvmlGpu | None]:
    known = host.read_nvml() if labels else None
    if known is None:
        return [None] * len(labels)
    order = host.read_cuda_order([gpu.name for gpu in known])
    return host.match_nvml(labels, known, environment.c_variable("CUDA_VISIBLE_DEVICES"), order)


def short_name(device: Any) -> str:
    """Returns a TensorFlow device's short name: "GPU:0" for "/physical_device:GPU:0"."""
    return ":".join(device.name.split(":")[-2:])


def capability_text(details: dict[str, Any]) -> str:
    """Returns the compute capability in a GPU's details, such as "8.6", or "" if it is missing."""
    return ".".join(str(part) for part in details.get("compute_capability") or ())


# Setting up --------------------------------------------------------------------------------------


def setup(
    device: str = "auto",
    memory: str | int = "growth",
    *,
    precision: str = "auto",
    jit: str | bool = "auto",
    threads: int | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    tf32: str | bool = "auto",
    backend: str = "auto",
    wait: Any = None,
    on_wait: Callable[[str], Any] | None = None,
) -> SetupRecord:
    """Configures Keras' backend, TensorFlow without starting it; arguments as in `SetupSpec`.

    Args:
        device: See `SetupSpec`.
        memory: See `SetupSpec`.
        precision: See `SetupSpec`.
        jit: See `SetupSpec`.
        threads: See `SetupSpec`.
        seed: See `SetupSpec`.
        deterministic: See `SetupSpec`.
        tf32: See `SetupSpec`.
        backend: See `SetupSpec`.
        wait: GiB of a card to wait for, or fields of `WaitSpec`; None waits for nothing.
        on_wait: See `wait_for_card()`.

    Raises:
        NoDeviceError: if the requested device does not exist; then nothing was changed.
        DeviceBusyError: if others use the card for longer than `wait` says.
    """
    global _current
    asked = None if wait is None else WaitSpec.parse(wait)
    spec = SetupSpec(device, memory, precision, jit, threads, seed, deterministic, tf32, backend)
    changes = sync_environment()
    chosen = choose_backend(spec.backend, runtime.backend(), runtime.keras_imported())
    if chosen.status == "applied":
        environment.set_variable("KERAS_BACKEND", chosen.value)
    if asked is not None:
        spec = replace(spec, device=_wait(asked, spec, on_wait))
    runtime.prepare_memory(spec.memory)
    facts = read_setup_facts()
    plan = plan_setup(spec, facts)
    _set_growth_variable(plan.find("memory"))
    plan = replace(plan, settings=tuple(apply_setting(setting) for setting in plan.settings))
    _current = _summarise(plan)
    notes = _explain_place(plan.device.name, _current.device) + _explain_changes(changes)
    notes += explain_preload(prepare())
    return SetupRecord(
        plan.device.name,
        plan.precision.policy,
        (chosen, *plan.settings),
        facts.started,
        tuple(notes),
    )


def _wait(asked: WaitSpec, spec: SetupSpec, on_wait: Callable[[str], Any] | None) -> str:
    kind, index = parse_device(spec.device)
    if kind == "CPU" or runtime.started():
        why = "the device is the CPU" if kind == "CPU" else "the devices have started: restart R"
        raise SpecError(f"`wait` waits for a card before it is used, and {why}.", arg="wait")

    def read_cards() -> list[tuple[str, host.NvmlGpu | None]]:
        gpus = runtime.physical_devices("GPU")
        labels = [str(runtime.device_details(gpu).get("device_name", "")) for gpu in gpus]
        names = [short_name(gpu) for gpu in gpus]
        cards = list(zip(names, _match_nvml(labels), strict=True))
        return cards if index is None else [card for card in cards if card[0] == f"GPU:{index}"]

    return wait_for_card(asked, spec.memory, read_cards, on_wait)


def read_seed() -> int | None:
    """Returns the session's seed: the one given to TensorFlow or Keras last, or `gpu_setup()`'s."""
    seed = runtime.read_seed()
    return current().seed if seed is None else seed


def repeats() -> bool:
    """Whether trainings are to repeat, since a seed was given: then no clock chooses anything."""
    return current().deterministic or read_seed() is not None


def read_setup_facts() -> SetupFacts:
    """Returns the settings in effect now, without starting TensorFlow's devices."""
    gpus = runtime.physical_devices("GPU")
    memory: str | int = "all"
    if gpus:
        growth, limit = runtime.memory_growth(gpus[0]), runtime.memory_limit(gpus[0])
        memory = memory_in_effect(growth, limit, environment.c_variable(FORCE_GROWTH))
    return SetupFacts(
        devices=tuple(read_devices()),
        started=runtime.started(),
        memory=memory,
        threads=runtime.threads(),
        policy=runtime.dtype_policy(),
        deterministic=current().deterministic,
        cuda_version=str(runtime.build_info().get("cuda_version", "")),
        tf32=runtime.tensor_float_32(),
        framework=runtime.FRAMEWORKS[runtime.backend()],
        seeded=runtime.read_seed() is not None,
    )


def apply_setting(setting: Setting) -> Setting:
    """Applies a planned setting; a setting that the backend refuses is reported as too late."""
    apply = _APPLY.get(setting.name)
    if setting.status != "applied" or apply is None:
        return setting
    try:
        apply(setting.value)
    except (RuntimeError, ValueError) as error:
        who = runtime.FRAMEWORKS[runtime.backend()]
        return replace(setting, status="too late", reason=f"{who} refused: {error}")
    return setting


def _set_visible(names: Sequence[str]) -> None:
    gpus = [gpu for gpu in runtime.physical_devices("GPU") if short_name(gpu) in names]
    runtime.set_visible_devices(gpus, "GPU")


def _set_memory(memory: str | int) -> None:
    for gpu in runtime.visible_devices("GPU"):
        if isinstance(memory, int):
            runtime.set_memory_limit(gpu, memory)
        else:
            runtime.set_memory_growth(gpu, memory == "growth")


def _set_growth_variable(setting: Setting) -> None:
    # Child processes inherit it. If it is too late, it would only hide the setting in effect here.
    if setting.status != "too late" and isinstance(setting.value, str):
        environment.set_variable(FORCE_GROWTH, "true" if setting.value == "growth" else None)


_APPLY = {
    "visible_devices": _set_visible,
    "memory": _set_memory,
    "threads": lambda count: runtime.set_threads(count, count),
    "precision": runtime.set_dtype_policy,
    "tf32": runtime.set_tensor_float_32,
    "seed": runtime.set_seed,
    "deterministic": lambda _: runtime.set_deterministic(),
}


def _summarise(plan: SetupPlan) -> Setup:
    visible = [short_name(gpu) for gpu in runtime.visible_devices("GPU")]
    values = {name: plan.find(name).value for name in ("precision", "jit", "seed", "deterministic")}
    return Setup(place_device(plan.device.name, visible), **values)


def _explain_place(name: str, place: str) -> list[str]:
    if name == place:
        return []
    return [
        f"Among the visible GPUs {name} is the only one, so TensorFlow itself calls it {place}."
    ]


def explain_preload(done: Preload) -> list[str]:
    """Returns notes on the CUDA libraries that gpukeras loaded, or failed to load."""
    if done.status == "done":
        return [f"gpukeras loaded {len(done.libraries)} CUDA libraries first, {done.reason}."]
    if done.status == "failed":
        return [f"A CUDA library could not be loaded before TensorFlow: {done.reason}."]
    return []


def _explain_changes(changes: Sequence[EnvironmentChange]) -> list[str]:
    late = [change.name for change in changes if not change.copied]
    if not late:
        return []
    return [
        f"{', '.join(late)} changed after TensorFlow was imported: too late; restart R, and set "
        "variables before Python starts."
    ]


# A device for a while ----------------------------------------------------------------------------


def enter_device(device: str) -> ExitStack:
    """Computes on a device, without soft placement, until `exit_device()`.

    Starts TensorFlow's devices.

    Raises:
        NoDeviceError: if the device does not exist.
    """
    global _current
    own = [short_name(gpu) for gpu in runtime.logical_devices("GPU")]
    visible = [short_name(gpu) for gpu in runtime.visible_devices("GPU")]
    named = visible if len(visible) == len(own) else own  # a GPU may be split into several
    cpus = [short_name(cpu) for cpu in runtime.logical_devices("CPU")]
    place = place_device(choose_device(device, named, cpus).name, named)
    stack = ExitStack()
    stack.enter_context(runtime.on_device(place, soft=False))
    stack.callback(_restore, _current)
    _current = replace(current(), device=place)
    return stack


def exit_device(handle: ExitStack) -> None:
    """Restores the device from before `enter_device()`."""
    handle.close()


def _restore(before: Setup | None) -> None:
    global _current
    _current = before
