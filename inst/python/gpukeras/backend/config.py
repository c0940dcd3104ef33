"""Plans `gpu_setup()`: pure functions from options and facts to settings with reasons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.backend.mixed_precision import (
    TF32_FROM,
    Gpu,
    Precision,
    choose_policy,
    parse_capability,
)
from gpukeras.core.errors import NoDeviceError
from gpukeras.core.options import SetupSpec, refused_value
from gpukeras.system.facts import parse_numbers
from gpukeras.system.known_issues import aborts_xla

RESTART = "restart R and call gpu_setup() first"


@dataclass(frozen=True)
class Device:
    """A device of this computer, whether or not TensorFlow may use it.

    Args:
        name: Such as "GPU:0", TensorFlow's physical numbering.
        kind: "CPU" or "GPU".
        label: The maker's name of it.
        compute_capability: Of an NVIDIA GPU, such as "8.6", else "".
        memory_bytes: Its physical memory, or None if not determined.
        visible: Whether TensorFlow may use it in this process.
    """

    name: str
    kind: str
    label: str
    compute_capability: str
    memory_bytes: float | None
    visible: bool


@dataclass(frozen=True)
class DeviceChoice:
    """A device's name and why it was chosen."""

    name: str
    reason: str


@dataclass(frozen=True)
class Setting:
    """One setting of `gpu_setup()`.

    Args:
        name: Such as "memory".
        value: The value in effect, or, before it is applied, the planned value.
        status: "applied", "unchanged", "too late" (TensorFlow has started) or "not needed".
        reason: Why, one phrase.
    """

    name: str
    value: Any
    status: str
    reason: str


@dataclass(frozen=True)
class SetupFacts:
    """The settings in effect before `gpu_setup()`.

    Args:
        devices: All physical devices.
        started: Whether TensorFlow has started its devices.
        memory: "growth", "all" or MiB, as the GPUs are configured now.
        threads: Intra-op and inter-op threads; 0 is TensorFlow's own choice.
        policy: Keras' dtype policy.
        deterministic: Whether deterministic kernels are already switched on.
        cuda_version: Of the TensorFlow build, such as "12.5.1", or "".
        tf32: Whether products of float32 may be computed as TF32.
        framework: What Keras computes with, "TensorFlow" or "JAX".
        seeded: Whether TensorFlow or Keras has a seed that stays if no other one is given.
    """

    devices: tuple[Device, ...]
    started: bool = False
    memory: str | int = "all"
    threads: tuple[int, int] = (0, 0)
    policy: str = "float32"
    deterministic: bool = False
    cuda_version: str = ""
    tf32: bool = True
    framework: str = "TensorFlow"
    seeded: bool = False

    @property
    def visible_gpus(self) -> tuple[str, ...]:
        """Names of the GPUs that TensorFlow may use now."""
        return tuple(gpu.name for gpu in self.devices if gpu.kind == "GPU" and gpu.visible)

    @property
    def reachable_gpus(self) -> tuple[Device, ...]:
        """GPUs that can still be chosen: once TensorFlow has started, the visible ones."""
        gpus = (device for device in self.devices if device.kind == "GPU")
        return tuple(gpu for gpu in gpus if gpu.visible or not self.started)


@dataclass(frozen=True)
class SetupPlan:
    """All settings that `gpu_setup()` planned, in the order in which they are applied."""

    device: DeviceChoice
    precision: Precision
    settings: tuple[Setting, ...]

    def find(self, name: str) -> Setting:
        """Returns the setting of that name."""
        return next(setting for setting in self.settings if setting.name == name)


# Devices -----------------------------------------------------------------------------------------


def parse_device(text: str) -> tuple[str, int | None]:
    """Returns kind ("auto", "CPU" or "GPU") and index (None if missing) of a device's name.

    Raises:
        SpecError: if the text is not a device's name.
    """
    pattern = r"/?(?:(?:physical_)?device:)?(?:(auto)|(cpu|gpu)(?::(\d+))?)"
    match = re.fullmatch(pattern, text.strip(), re.IGNORECASE) if isinstance(text, str) else None
    if match is None:
        raise refused_value("device", text, '"auto", "cpu", "gpu" or one such as "GPU:0"')
    automatic, kind, index = match.groups()
    return "auto" if automatic else kind.upper(), None if index is None else int(index)


def choose_device(
    requested: str,
    gpus: Sequence[str],
    cpus: Sequence[str] = ("CPU:0",),
    framework: str = "TensorFlow",
) -> DeviceChoice:
    """Chooses the device to compute on.

    Args:
        requested: "auto", "gpu", "cpu" or one device.
        gpus: Names of the existing GPUs.
        cpus: Names of the existing CPU devices.
        framework: What found them, for messages.

    Raises:
        NoDeviceError: if the requested device does not exist; "auto" falls back to the CPU.
    """
    kind, index = parse_device(requested)
    if kind == "auto" and not gpus:
        return DeviceChoice(cpus[0], f"{framework} finds no GPU; gpu_check() says why")
    names = cpus if kind == "CPU" else gpus
    name = f"{'GPU' if kind == 'auto' else kind}:{index or 0}"
    if index is None and names:
        name = names[0]
    if name not in names:
        raise _no_device(requested, [*cpus, *gpus], framework)
    if kind == "auto":
        return DeviceChoice(name, f"the first of {len(gpus)} GPUs" if gpus[1:] else "the GPU")
    return DeviceChoice(name, "as asked")


def _no_device(requested: str, available: Sequence[str], framework: str) -> NoDeviceError:
    return NoDeviceError(
        f'There is no device "{requested}"; {framework} finds {", ".join(available)}.',
        hint="gpu_check() says why.",
        wanted=requested,
        found=list(available),
    )


def choose_backend(requested: str, now: str, imported: bool) -> Setting:
    """Returns the setting of Keras' backend, which cannot change once Keras is imported.

    Args:
        requested: "auto", "tensorflow" or "jax".
        now: The backend in use, or the one that Keras is configured with.
        imported: Whether Keras is imported.
    """
    if requested in ("auto", now):
        reason = "as asked" if requested == now else "as Keras is configured"
        return Setting("backend", now, "unchanged", reason)
    if imported:
        return Setting("backend", now, "too late", f"Keras has started on it; {RESTART}")
    return Setting("backend", requested, "applied", "as asked")


def place_device(name: str, visible: Sequence[str]) -> str:
    """Returns TensorFlow's own name for a device: it numbers the visible GPUs from 0."""
    return f"GPU:{visible.index(name)}" if name in visible else name


# Settings ----------------------------------------------------------------------------------------


def plan_setup(spec: SetupSpec, facts: SetupFacts) -> SetupPlan:
    """Plans all settings, each with its status and reason.

    Raises:
        NoDeviceError: if the requested device does not exist.
    """
    choice = choose_device(
        spec.device, [gpu.name for gpu in facts.reachable_gpus], framework=facts.framework
    )
    used = _choose_gpus(spec, choice, facts)
    cards = [Gpu(gpu.compute_capability, gpu.label) for gpu in used]
    precision = choose_policy(spec.precision, cards)
    names = tuple(gpu.name for gpu in used)
    settings = (
        Setting("device", choice.name, "applied", choice.reason),
        plan_visible(names, facts),
        plan_memory(spec.memory, names, facts),
        plan_threads(spec.threads, facts),
        plan_precision(precision, facts),
        plan_tf32(spec.tf32, used, facts),
        plan_jit(spec, used, facts),
        plan_seed(spec, facts.framework),
        plan_determinism(spec.deterministic, facts),
    )
    return SetupPlan(choice, precision, settings)


def _choose_gpus(spec: SetupSpec, choice: DeviceChoice, facts: SetupFacts) -> tuple[Device, ...]:
    """Returns the GPUs to use: none for the CPU, one if it was named, else all."""
    if not choice.name.startswith("GPU"):
        return ()
    named = parse_device(spec.device)[1] is not None
    return tuple(gpu for gpu in facts.reachable_gpus if not named or gpu.name == choice.name)


def plan_visible(names: tuple[str, ...], facts: SetupFacts) -> Setting:
    """Plans which GPUs TensorFlow may use; the others stay free."""
    name, now = "visible_devices", facts.visible_gpus
    if not any(device.kind == "GPU" for device in facts.devices):
        return Setting(name, (), "not needed", "there is no GPU")
    if names == now:
        return Setting(name, names, "unchanged", "as wanted")
    if facts.started:
        shown = ", ".join(now) or "no GPU"
        return Setting(
            name, now, "too late", f"{facts.framework} has started with {shown}; {RESTART}"
        )
    reason = "the others stay free" if names else f"GPUs are hidden from {facts.framework}"
    return Setting(name, names, "applied", reason)


def plan_memory(requested: str | int, names: tuple[str, ...], facts: SetupFacts) -> Setting:
    """Plans how much of the GPUs' memory TensorFlow takes.

    Args:
        requested: "growth", "all" or MiB.
        names: The GPUs to use.
        facts: The settings in effect.
    """
    now = facts.memory
    if not names:
        return Setting("memory", requested, "not needed", "no GPU is used")
    if requested == now:
        return Setting("memory", now, "unchanged", "as wanted")
    if facts.started:
        reason = f"{facts.framework} has started; {RESTART}"
        return Setting("memory", now, "too late", reason)
    if isinstance(now, int) and isinstance(requested, str):
        reason = f"a limit once set can be changed, not removed; {RESTART}"
        return Setting("memory", now, "too late", reason)
    reasons = {"growth": "takes what it needs", "all": "takes all at once"}
    return Setting(
        "memory", requested, "applied", reasons.get(str(requested), "MiB at most on each GPU")
    )


def memory_in_effect(growth: bool | None, limit: int | None, forced: str | None) -> str | int:
    """Returns a GPU's memory setting, "growth", "all" or MiB.

    Args:
        growth: Whether its memory is configured to grow.
        limit: Its configured limit in MiB, or None.
        forced: The value of TF_FORCE_GPU_ALLOW_GROWTH, or None.
    """
    if limit is not None:
        return limit
    if forced in ("true", "false"):  # the variable overrides the configuration
        return "growth" if forced == "true" else "all"
    return "growth" if growth else "all"


def plan_threads(requested: int | None, facts: SetupFacts) -> Setting:
    """Plans the threads within one op and across ops, both limited to the same number."""
    intra, inter = facts.threads
    now = intra or "auto"
    if requested is None or (requested, requested) == (intra, inter):
        reason = "as wanted" if requested else "all cores" if now == "auto" else "as set before"
        return Setting("threads", now, "unchanged", reason)
    if facts.started:
        return Setting("threads", now, "too late", f"{facts.framework} has started; {RESTART}")
    return Setting("threads", requested, "applied", "within one op, and across ops")


def plan_precision(precision: Precision, facts: SetupFacts) -> Setting:
    """Plans the dtype policy, which applies to layers made from now on."""
    status = "unchanged" if precision.policy == facts.policy else "applied"
    reason = precision.reason
    if facts.started and status == "applied":
        reason += "; for layers made from now on"
    return Setting("precision", precision.policy, status, reason)


def plan_tf32(requested: str | bool, gpus: Sequence[Device], facts: SetupFacts) -> Setting:
    """Plans whether products and convolutions of float32 run on tensor cores, as TF32.

    TF32 has float32's range and 10 of its 23 bits of mantissa (NVIDIA A100 white paper, 2020);
    TensorFlow allows it by default. It can change at any time.

    Args:
        requested: "auto", or whether TF32 is allowed.
        gpus: The GPUs to use.
        facts: The settings in effect.
    """
    capabilities = [parse_capability(gpu.compute_capability) for gpu in gpus]
    able = any(value is not None and value >= TF32_FROM for value in capabilities)
    if requested == "auto" and not able:
        reason = f"no GPU of compute capability {TF32_FROM} or more is used"
        return Setting("tf32", facts.tf32, "not needed", reason)
    value = facts.tf32 if requested == "auto" else bool(requested)
    reason = f"products of float32 keep {'10' if value else 'all 23'} bits of the mantissa"
    return Setting("tf32", value, "unchanged" if value == facts.tf32 else "applied", reason)


def plan_jit(spec: SetupSpec, gpus: Sequence[Device], facts: SetupFacts) -> Setting:
    """Plans whether XLA compiles training steps.

    If XLA of this build would end the process (`known_issues.BLACKWELL_XLA`), "auto" is off.

    Args:
        spec: The options of the user.
        gpus: The GPUs to use.
        facts: The settings in effect.
    """
    requested = spec.jit
    capabilities = [gpu.compute_capability for gpu in gpus]
    if requested == "auto" and choose_jit(capabilities, facts.cuda_version) is False:
        reason = f"XLA of CUDA {facts.cuda_version} would abort R on this GPU"
        return Setting("jit", False, "applied", reason)
    seeded = spec.seed is not None or spec.deterministic or facts.deterministic or facts.seeded
    measured = "with a seed, gpu_fit() does not measure whether it pays"
    reasons = {
        "auto": measured if seeded else "gpu_fit() measures whether it pays",
        "True": "as asked",
        "False": "as asked",
    }
    return Setting("jit", requested, "applied", reasons[str(requested)])


def choose_jit(capabilities: Sequence[str], cuda_version: str) -> str | bool:
    """Returns the default for XLA: "auto", or False if XLA would end the process.

    Args:
        capabilities: Compute capabilities of the GPUs to be used, such as "12.0".
        cuda_version: Of the TensorFlow build, such as "12.5.1", or "".
    """
    cuda = parse_numbers(cuda_version)
    aborts = any(aborts_xla(parse_numbers(capability), cuda) for capability in capabilities)
    return False if aborts else "auto"


def plan_seed(spec: SetupSpec, framework: str = "TensorFlow") -> Setting:
    """Plans the seed; deterministic random ops fail without one."""
    if spec.seed is not None:
        return Setting("seed", spec.seed, "applied", f"Python, NumPy and {framework}")
    if spec.deterministic:
        return Setting("seed", 0, "applied", "deterministic kernels need a seed")
    return Setting("seed", None, "unchanged", "not asked for")


def plan_determinism(requested: bool, facts: SetupFacts) -> Setting:
    """Plans deterministic kernels, which TensorFlow cannot switch off again."""
    now = facts.deterministic
    if requested == now:
        return Setting("deterministic", now, "unchanged", "as wanted")
    if now:
        reason = "cannot be switched off again; restart R"
        return Setting("deterministic", True, "too late", reason)
    return Setting("deterministic", True, "applied", "slower, the same result each time")
