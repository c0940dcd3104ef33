"""Facts about a computer and a session as frozen records, and what several rules derive from them.

`parse_facts()` makes them of the nested dict that `diagnostics.collect.read_facts()` records, which
a report shows whole; the records hold what a rule reads. None means "not determined", never "no";
an empty string or tuple means "looked for and not found".
"""

from __future__ import annotations

import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WHEELS = (  # distributions that install the module `tensorflow`
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
    "tf-nightly-cpu",
)


# The computer ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlatformFacts:
    """The operating system, see `collect.read_platform()`."""

    system: str | None
    release: str | None
    machine: str | None


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA GPU on the PCI bus, with its kernel driver ("" for none)."""

    driver: str | None


@dataclass(frozen=True)
class HardwareFacts:
    """The PCI bus, see `nvidia.read_pci_gpus()`."""

    nvidia_gpus: tuple[PciGpu, ...] | None


@dataclass(frozen=True)
class DriverFacts:
    """Files of the NVIDIA driver, see `nvidia.read_driver()`."""

    version: str | None
    device_nodes: tuple[str, ...] | None
    access: Mapping[str, str]
    dxg: bool | None
    wsl_libcuda: bool | None
    tegra: bool | None
    prime: str | None


@dataclass(frozen=True)
class ContainerFacts:
    """Signs of a container, see `host.read_container()`."""

    marker: str | None
    nvidia_visible_devices: str | None
    nvidia_driver_capabilities: str | None


@dataclass(frozen=True)
class SlurmFacts:
    """The job of a cluster, see `host.read_slurm()`."""

    job_id: str | None
    gpus: str | None


# What the driver answers: see `probes.driver` -----------------------------------------------------


@dataclass(frozen=True)
class CudaGpu:
    """A GPU as libcuda shows it."""

    name: str | None
    capability: str | None
    compute_mode: int | None
    uuid: str | None


@dataclass(frozen=True)
class CudaFacts:
    """The answers of libcuda; `init` and `count_status` are results of type CUresult."""

    loaded: bool | None
    error: str | None
    path: str | None
    simulated: bool | None
    init: int | None
    count_status: int | None
    count: int | None
    driver_version: int | None
    devices: tuple[CudaGpu, ...]


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int | None
    bytes: float | None
    program: str | None


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML shows it, visible to CUDA or not."""

    status: int | None
    name: str | None
    uuid: str | None
    total_bytes: float | None
    free_bytes: float | None
    compute_mode: int | None
    mig: bool | None
    mig_devices: int | None
    link_width: int | None
    link_width_max: int | None
    link_generation: int | None
    link_generation_max: int | None
    throttle: int | None
    utilization: float | None
    processes: tuple[GpuProcess, ...] | None


@dataclass(frozen=True)
class NvmlFacts:
    """The answers of NVML; `init` and `count_status` are results of type nvmlReturn_t."""

    loaded: bool | None
    error: str | None
    simulated: bool | None
    driver: str | None
    cuda_version: int | None
    init: int | None
    count_status: int | None
    count: int | None
    devices: tuple[NvmlGpu, ...]


@dataclass(frozen=True)
class CudnnFacts:
    """The answer of cuDNN, such as 91002."""

    version: int | None


# Python and its packages --------------------------------------------------------------------------


@dataclass(frozen=True)
class PythonFacts:
    """The running Python, see `pip.read_python()`."""

    executable: str | None
    version: str | None
    prefix: str | None
    is_managed: bool | None
    pid: int | None
    is_requested: bool | None


@dataclass(frozen=True)
class Requirement:
    """An unmet requirement of TensorFlow's extra, see `packages.read_requirements()`."""

    name: str | None
    wanted: str | None
    installed: str | None


@dataclass(frozen=True)
class BuildFacts:
    """How TensorFlow was built, see `packages.read_build()`."""

    version: str | None
    is_cuda_build: bool | None
    is_rocm_build: bool | None
    cuda_version: str | None
    cuda_compute_capabilities: tuple[str, ...]
    searches_cusolver: bool | None


@dataclass(frozen=True)
class InstallationFacts:
    """Who installed TensorFlow, see `packages.read_installation()`."""

    conda_build: str | None
    uv: bool | None


@dataclass(frozen=True)
class CompilerFacts:
    """The files of XLA's compiler tools, see `packages.read_compiler()`."""

    ptxas: str | None
    libdevice: str | None


@dataclass(frozen=True)
class OtherPython:
    """Another environment with TensorFlow, see `packages.read_elsewhere()`."""

    python: str | None
    tensorflow: str | None
    is_cuda_build: bool | None


@dataclass(frozen=True)
class KerasFacts:
    """Keras' backend."""

    backend: str | None


@dataclass(frozen=True)
class ImportFailure:
    """Why an import fails in this process, see `load_errors.read_load_error()`."""

    kind: str | None
    version: str | None
    needed_by: str | None
    said: str | None
    mapped: str | None
    newest: str | None
    newer: str | None


# This session ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RSessionFacts:
    """What R says of itself and of its Python."""

    forced: str | None
    requested_python: str | None
    python_before: bool | None
    tensorflow_r_loaded: bool | None
    ldpaths: str | None
    rstudio: bool | None
    forked: bool | None
    reticulate: str | None
    numpy: str | None


@dataclass(frozen=True)
class TensorFlowBeside:
    """A TensorFlow that is imported beside JAX."""

    visible_gpus: tuple[str, ...]
    started: bool | None


@dataclass(frozen=True)
class RuntimeFacts:
    """What a backend of Keras says in this session, see `collect.read_imported()`."""

    imported: bool | None
    error: str | None
    version: str | None
    started: bool | None
    physical_gpus: tuple[str, ...] | None
    visible_gpus: tuple[str, ...] | None
    platforms: str | None
    tensorflow: TensorFlowBeside


@dataclass(frozen=True)
class PreloadFacts:
    """Whether gpukeras loaded the wheels' libraries, see `cuda_preload.Preload`."""

    status: str | None


# Child processes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class JaxLog:
    """The lines of JAX's log, see `jax_log.PATTERNS`."""

    plugin_version: str | None
    library: str | None
    check: str | None
    device: str | None
    plugin: str | None


@dataclass(frozen=True)
class LogFacts:
    """A child process's log, see `tf_log.parse_log()` and `jax_log.parse_jax_log()`."""

    missing_libraries: Mapping[str, str]
    capability: str | None
    ignored: tuple[str, ...]
    cudnn: str | None
    ptx: bool | None
    libdevice: bool | None
    ptxas: bool | None
    insufficient_driver: bool | None
    busy: bool | None
    out_of_memory: bool | None
    not_initialized: bool | None
    cupti: bool | None
    lines: tuple[str, ...]
    jax: JaxLog


@dataclass(frozen=True)
class ListedGpu:
    """A GPU that the backend lists in a child process."""

    name: str | None
    capability: str | None


@dataclass(frozen=True)
class Listing:
    """The backend's list of GPUs in a child process, see `child_probes.read_listings()`."""

    ok: bool | None
    gpus: tuple[ListedGpu, ...] | None
    error: str | None
    log: LogFacts


@dataclass(frozen=True)
class Agreement:
    """How far a model's output on a GPU is from the CPU's, see `placement.judge_outputs()`."""

    ok: bool | None
    deviation: float | None
    tolerance: float | None


@dataclass(frozen=True)
class TraceFacts:
    """What the profiler saw of some steps, see `profiler.trace.gpu_summary`."""

    kernels: int | None
    kernel_s: float | None
    busy_share: float | None
    median_kernel_us: float | None
    error: str | None
    cupti: bool | None


@dataclass(frozen=True)
class UseFacts:
    """How training steps used a device, see `usage.read_use()`; no `device` if none were made."""

    device: str | None
    variables: Mapping[str, int]
    placement: Mapping[str, Mapping[str, int]]
    hard_placement_error: str | None
    numeric: Agreement
    peak_rise_bytes: float | None
    held_bytes: float | None
    expected_bytes: float | None
    trace: TraceFacts
    first_s: float | None
    median_s: float | None
    repeated_s: float | None
    steps: int | None
    eager: bool | None
    py_function: bool | None
    retraces: int | None
    deterministic: bool | None
    tf32: bool | None
    policy: str | None
    capability: str | None
    card: str | None
    input_dtypes: tuple[str, ...]
    rnn: tuple[Mapping[str, str], ...]  # `placement.read_rnn()`
    cpu_only_ops: tuple[str, ...]
    gpus: int | None
    gpus_used: int | None
    batch_size: int | None
    error: str | None
    unread: Mapping[str, str]


@dataclass(frozen=True)
class ProofStage:
    """A stage of the test computation; `ok` is None if it did not end."""

    name: str | None
    ok: bool | None
    error: str | None
    deviation: float | None
    tolerance: float | None


@dataclass(frozen=True)
class ProofFacts:
    """The test computation in a child process, see `child_probes.prove_device()`."""

    device: str | None
    ok: bool | None
    error: str | None
    ended: str | None
    stages: tuple[ProofStage, ...]
    log: LogFacts
    use: UseFacts


# All facts ---------------------------------------------------------------------------------------

Readings = Mapping[str, str | None]  # values of a variable by who reads it: see `env_vars`


@dataclass(frozen=True)
class Facts:
    """All facts of a check, one record a group."""

    session: RSessionFacts
    platform: PlatformFacts
    hardware: HardwareFacts
    driver: DriverFacts
    toolkits: tuple[str, ...]
    container: ContainerFacts
    slurm: SlurmFacts
    environment: Mapping[str, Readings]
    python: PythonFacts
    packages: Mapping[str, str | None]
    requirements: tuple[Requirement, ...]
    build: BuildFacts
    installation: InstallationFacts
    compiler: CompilerFacts
    elsewhere: tuple[OtherPython, ...]
    libraries: Mapping[str, str]
    keras: KerasFacts
    import_error: ImportFailure
    import_alone: str | None  # how a process ended that only imports the backend
    cuda: CudaFacts
    cuda_shown: CudaFacts
    nvml: NvmlFacts
    cudnn: CudnnFacts
    tensorflow: RuntimeFacts
    jax: RuntimeFacts
    preload: PreloadFacts
    listings: Mapping[str, Listing]
    proof: ProofFacts
    use: UseFacts
    skipped: Mapping[str, str]
    unread: Mapping[str, str]

    @property
    def backend(self) -> str:
        """The backend of Keras that the check asks: "jax", or "tensorflow" for any other."""
        return "jax" if self.keras.backend == "jax" else "tensorflow"

    @property
    def backend_name(self) -> str:
        """The name of that backend, "JAX" or "TensorFlow"."""
        return "JAX" if self.backend == "jax" else "TensorFlow"

    @property
    def runtime(self) -> RuntimeFacts:
        """What that backend says in this session."""
        return self.jax if self.backend == "jax" else self.tensorflow

    def readings(self, name: str) -> Readings:
        """Returns the values of an environment variable by who reads it, as far as known."""
        return self.environment.get(name, {})

    def listing(self, variation: str) -> Listing:
        """Returns the list of a child process, see `child_probes.VARIATIONS`."""
        return self.listings.get(variation, NOT_LISTED)


# Reading -----------------------------------------------------------------------------------------


def parse_facts(recorded: Any) -> Facts:  # noqa: ANN401
    """Makes the records of recorded facts.

    A value of another type than its field's is not determined: it becomes None, or an empty record,
    mapping or tuple. Of a mapping or a list, such items are left out.
    """
    facts: Facts = _parse(Facts, recorded)
    return facts


def _parse(kind: Any, value: Any) -> Any:
    if isinstance(kind, types.UnionType):  # T | None
        kind = typing.get_args(kind)[0]
        return _parse(kind, value) if _fits(kind, value) else None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        items = value if _fits(kind, value) else ()
        return tuple(_parse(arguments[0], item) for item in items if _fits(arguments[0], item))
    if origin is Mapping:
        known = value if _fits(kind, value) else {}
        return {
            key: _parse(arguments[1], item)
            for key, item in known.items()
            if isinstance(key, str) and _fits(arguments[1], item)
        }
    if kind in (str, bool, int, float):
        return kind(value)
    values = value if isinstance(value, Mapping) else {}
    return kind(**{name: _parse(hint, values.get(name)) for name, hint in _hints(kind).items()})


def _fits(kind: Any, value: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return value is None or _fits(typing.get_args(kind)[0], value)
    if kind in (int, float):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value) and (kind is float or value == int(value))
    if kind in (str, bool):
        return isinstance(value, kind)
    accepted = (list, tuple) if typing.get_origin(kind) is tuple else Mapping
    return isinstance(value, accepted)


@functools.cache
def _hints(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


NOT_LISTED: Listing = _parse(Listing, None)
NOT_TRACED: TraceFacts = _parse(TraceFacts, None)
NOT_USED: UseFacts = _parse(UseFacts, None)


# What several rules derive ------------------------------------------------------------------------


def list_jax_plugins(facts: Facts) -> dict[int, str]:
    """Returns the installed CUDA plugins of JAX: CUDA's major version, and the plugin's version."""
    versions = {cuda: facts.packages.get(f"jax-cuda{cuda}-plugin") for cuda in (12, 13)}
    return {cuda: version for cuda, version in versions.items() if version is not None}


def is_wsl(facts: Facts) -> bool:
    """Whether the system is Linux under WSL."""
    return "microsoft" in (facts.platform.release or "").lower()


def is_linux(facts: Facts) -> bool:
    """Whether the system is known to be Linux."""
    return facts.platform.system == "Linux"


def hides_gpus(value: str | None, gpus: int | None) -> bool:
    """Whether a value of CUDA_VISIBLE_DEVICES leaves no GPU.

    CUDA stops at the first invalid entry, so "-1", "" and "NoDevFiles" hide all GPUs, and so does
    an index beyond the last. A UUID is not checked and does not count as hiding.
    """
    if value is None:
        return False
    first = value.split(",")[0].strip()
    if not first.lstrip("+").isdigit():
        return first in ("", "-1", "NoDevFiles", "void", "none")
    return gpus is not None and 0 < gpus <= int(first)


def count_gpus(facts: Facts) -> int | None:
    """Counts the computer's GPUs by device nodes, or on the PCI bus; None if not determined."""
    nodes = facts.driver.device_nodes
    return len(nodes or facts.hardware.nvidia_gpus or ()) or None


def list_wheels(facts: Facts) -> list[str]:
    """Returns the installed distributions of the module `tensorflow`, with their versions."""
    versions = {name: facts.packages.get(name) for name in WHEELS}
    return [f"{name} {version}" for name, version in versions.items() if version is not None]


def describe_readings(facts: Facts, name: str) -> str:
    """Describes the values that C, Python and R read from an environment variable."""
    readings = facts.readings(name)
    shown = {"c": "C", "python": "Python", "r": "R"}
    texts = [
        f"{shown[who]} reads {'nothing' if value is None else repr(value)}"
        for who, value in readings.items()
        if who in shown
    ]
    return f"of {name} " + ", ".join(texts)


# Parts of the names of ops that do most of a network's computation; on a CPU such as _MklMatMul.
HEAVY = ("MatMul", "Einsum", "Conv1D", "Conv2D", "Conv3D", "CudnnRNN", "Xla")


def is_heavy(op: str) -> bool:
    """Whether an op type does most of a network's computation, judged by its name."""
    return any(name in op for name in HEAVY)


def is_simulated(facts: Facts) -> bool:
    """Whether the driver identifies itself as a stub for tests."""
    return facts.cuda.simulated is True or facts.nvml.simulated is True


def parse_numbers(text: str | None) -> tuple[int, ...]:
    """Parses a version's leading numbers: "2.21.0rc1" is (2, 21, 0); () if there are none."""
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", text) if text is not None else None
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def find_release(facts: Facts) -> tuple[int, ...]:
    """Returns the version of the imported or installed TensorFlow as numbers; () if unknown."""
    return parse_numbers(facts.tensorflow.version) or parse_numbers(facts.build.version)


def list_capabilities(facts: Facts) -> list[tuple[int, ...]]:
    """Returns the GPUs' compute capabilities, such as (8, 6), from the driver or TensorFlow."""
    groups = [[gpu.capability for gpu in facts.cuda.devices]]
    for variation in ("preloaded", "as it is"):
        groups.append([gpu.capability for gpu in facts.listing(variation).gpus or ()])
    for texts in groups:
        capabilities = [numbers for text in texts if len(numbers := parse_numbers(text)) == 2]
        if capabilities:
            return capabilities
    return []


def count_listed(facts: Facts, variation: str) -> int | None:
    """Counts the GPUs that the backend listed in a child process; None without a list."""
    gpus = facts.listing(variation).gpus
    return None if gpus is None else len(gpus)


def count_fresh(facts: Facts) -> int | None:
    """Counts the GPUs that the backend lists in a new gpukeras process; None if not tried."""
    preloaded = count_listed(facts, "preloaded")
    return count_listed(facts, "as it is") if preloaded is None else preloaded


def lists_none(facts: Facts) -> bool:
    """Whether the backend is known to list no GPU, here or in a new process."""
    physical, fresh = facts.runtime.physical_gpus, count_fresh(facts)
    return fresh == 0 if physical is None else physical == () and not fresh


def find_logs(facts: Facts) -> list[LogFacts]:
    """Returns the parsed TensorFlow logs of the child processes: listings first, then the proof."""
    return [*(listing.log for listing in facts.listings.values()), facts.proof.log]


def find_errors(facts: Facts) -> list[str]:
    """Returns the errors of the computation in a child process, and relevant lines of its log."""
    errors = [facts.proof.error, *(stage.error for stage in facts.proof.stages)]
    return [text for text in (*errors, *facts.proof.log.lines) if text]


def list_kernels(facts: Facts) -> list[tuple[int, int]]:
    """Returns the compute capabilities for which TensorFlow's build has code.

    "sm_86" is code for 8.6 and later minor versions; "compute_90" is code for 9.0, and PTX.
    """
    names = facts.build.cuda_compute_capabilities
    matches = [re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[a-z]?", name) for name in names]
    return [(int(match[1]), int(match[2])) for match in matches if match]


def list_uncoded(facts: Facts) -> list[tuple[int, ...]]:
    """Returns the GPUs' compute capabilities without code in the build, which need PTX compiled."""
    built = list_kernels(facts)
    return [
        card
        for card in list_capabilities(facts)
        if built and not any(code[:1] == card[:1] and code <= card for code in built)
    ]
