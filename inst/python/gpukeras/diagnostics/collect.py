"""Reads the facts for `gpu_check()` in layers, cheapest first, until a root cause is proven.

Whatever may crash, hang or take memory runs in child processes (`child_probes`). This process only
reports its current state, and lists its own GPUs last.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpukeras.backend import cuda_preload, import_errors, runtime
from gpukeras.backend.devices import current, short_name
from gpukeras.backend.env_vars import read_environment, sync_environment
from gpukeras.backend.jax_backend import jax_platforms, tensorflow_beside
from gpukeras.backend.jax_module import jax
from gpukeras.core.errors import GpuKerasError, RuntimeMissingError
from gpukeras.core.keras_types import Model
from gpukeras.diagnostics import load_errors, nvidia
from gpukeras.diagnostics.child_probes import (
    list_visible,
    quiet_environment,
    read_driver_answers,
    read_import_alone,
    read_listings,
    read_proof,
)
from gpukeras.diagnostics.verdict import find_root_id
from gpukeras.system import host, packages, pip
from gpukeras.system.facts import Facts, is_simulated, parse_facts

# GPU memory that a second TensorFlow needs before it computes: its CUDA context with cuDNN and
# cuBLAS takes some 500 MiB, and TensorFlow leaves the rest of a small card to the system.
CHILD_BYTES = 2**30
# Facts on how TensorFlow was built and installed.
OF_TENSORFLOW = ("build", "requirements", "installation", "compiler", "elsewhere", "libraries")
EXCLUSIVE_PROCESS = 3  # NVML and CUDA: one process at a time may hold the GPU


def read_facts(
    session: Mapping[str, Any] | None = None,
    model: Model | None = None,
    data: Any = None,
    root: str | Path = "/",
) -> dict[str, Any]:
    """Reads all required facts; a fact that cannot be read is None, with the reason in `unread`.

    Args:
        session: As in `check()`.
        model: As in `check()`.
        data: As in `check()`.
        root: Root of the file system.
    """
    known = dict(session) if isinstance(session, Mapping) else {}
    readings = known.pop("environment", None)
    seen_by_r = dict(readings) if isinstance(readings, Mapping) else {} if known else None
    facts: dict[str, Any] = {"session": known, "skipped": {}, "unread": {}}
    read_files(facts, seen_by_r, Path(root))
    backend = parse_facts(facts).backend
    _read_into(facts, backend, read_imported)
    read_import_error(facts)
    with quiet_environment(backend) as environment:
        read_driver_answers(facts, environment)
        read_layers(facts, environment)
        if may_die(facts, Path(root)):
            read_import_alone(facts, environment)
        if model is not None:
            read_own_use(facts, model, data)
    facts["preload"] = None if cuda_preload.done is None else asdict(cuda_preload.done)
    _read_into(facts, "loaded", nvidia.read_loaded_libraries)
    return facts


def read_layers(facts: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Reads the layers in order; the first proven root cause ends the search.

    Args:
        facts: The facts so far, changed in place.
        environment: The child processes' environment.
    """
    known = parse_facts(facts)
    cause = find_root_id(known)
    for name, read in LAYERS.items():
        reason = f"{cause} was found before" if cause else explain_skip(name, known)
        if reason:
            facts["skipped"][name] = reason
            continue
        read(facts, environment)
        known = parse_facts(facts)
        cause = find_root_id(known)


def may_die(facts: dict[str, Any], root: Path) -> bool:
    """Whether an import of the backend may end its process: an old processor, or one did."""
    ended = parse_facts(facts).listing("as it is").error or ""
    return host.lacks_avx(root) or ended.startswith("killed")


def explain_skip(layer: str, facts: Facts) -> str:
    """Returns why a layer is skipped although no root cause is proven, or ""."""
    if layer == "listings" and facts.runtime.physical_gpus:
        return "this session lists a GPU already"
    if layer == "session":
        return explain_no_import(facts) or explain_no_start(facts)
    if layer == "compute":
        return explain_no_proof(facts)
    return ""


def explain_no_import(facts: Facts) -> str:
    """Returns why the backend is not imported here, such as a crash in a child process, or ""."""
    if facts.runtime.imported is True:
        return ""
    ends = [listing.error or "" for listing in facts.listings.values()]
    last = ends[-1] if ends else ""
    fatal = last.startswith(("killed", "did not end"))
    return f"importing {facts.backend_name} is not safe here: {last}" if fatal else ""


def explain_no_start(facts: Facts) -> str:
    """Returns why this session's GPUs are not listed: JAX would start them; or ""."""
    jax = facts.backend == "jax" and facts.jax.started is not True
    if jax and facts.listing("as it is").ok is False:
        return ""  # whether the import fails here too
    return "JAX has not started in this session, and listing its devices would" if jax else ""


def explain_no_proof(facts: Facts) -> str:
    """Returns why no computation runs in a child process, or ""."""
    if not list_visible(facts):
        return f"{facts.backend_name} lists no GPU that could compute"
    if is_simulated(facts):
        return "the driver is simulated, nothing can be computed on it"
    if facts.runtime.started is not True:
        return ""
    gpus = facts.nvml.devices
    if any(gpu.compute_mode == EXCLUSIVE_PROCESS for gpu in gpus):
        return "the GPU admits one process at a time, and this session is the one"
    if any(gpu.free_bytes is not None and gpu.free_bytes < CHILD_BYTES for gpu in gpus):
        return "this session holds the GPU's memory; give model and data to prove its own training"
    return ""


def _read_into(
    facts: dict[str, Any],
    name: str,
    read: Callable[[], Any],
    raised: type[Exception] | tuple[()] = (),
) -> None:
    """Reads a fact; an error is the reason why it is unread, unless it is to be raised."""
    try:
        facts[name] = read()
    except raised:
        raise
    except Exception as error:  # an unusual machine must not end the check
        facts[name] = None
        facts["unread"][name] = f"{type(error).__name__}: {error}"


# Files: no TensorFlow, no driver -----------------------------------------------------------------


def read_files(facts: dict[str, Any], seen_by_r: Mapping[str, str] | None, root: Path) -> None:
    """Reads facts from files, the environment and package metadata.

    Args:
        facts: The facts so far, changed in place.
        seen_by_r: Environment variables as R reads them, or None.
        root: Root of the file system.
    """
    session = facts["session"]
    readers: dict[str, Callable[[], Any]] = {
        "platform": read_platform,
        "hardware": lambda: {"nvidia_gpus": nvidia.read_pci_gpus(root / "sys/bus/pci/devices")},
        "driver": lambda: nvidia.read_driver(root),
        "toolkits": lambda: nvidia.read_toolkits(root),
        "container": lambda: host.read_container(root),
        "slurm": host.read_slurm,
        "environment": lambda: read_environment(seen_by_r),
        "python": lambda: pip.read_python(session),
        "packages": packages.read_packages,
        "requirements": packages.read_requirements,
        "build": packages.read_build,
        "installation": packages.read_installation,
        "compiler": packages.read_compiler,
        "elsewhere": packages.read_elsewhere,
        # The backend of the imported Keras, else the one it would choose under gpukeras.
        "keras": lambda: {"backend": runtime.backend()},
    }
    for name, read in readers.items():
        _read_into(facts, name, read)
    if parse_facts(facts).backend == "jax":  # then TensorFlow, if there is one, explains nothing
        facts |= dict.fromkeys(OF_TENSORFLOW)
    else:
        _read_into(facts, "libraries", lambda: packages.read_libraries(facts["build"] or {}))


def read_platform() -> dict[str, str]:
    """Returns name, release and machine type of the operating system."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
    }


# This session ------------------------------------------------------------------------------------


def read_imported() -> dict[str, Any]:
    """Reads the backend's version and GPUs in this session if it is already imported."""
    if not runtime.imported():
        failed = import_errors.failures.get(runtime.backend())
        return {"imported": False, **({"error": failed} if failed else {})}
    return read_jax() if runtime.backend() == "jax" else read_tensorflow()


def read_jax() -> dict[str, Any]:
    """Returns the version of the imported JAX, its GPUs if it has started, and its settings."""
    (version,) = runtime.backend_version().values()
    jax_facts = {"imported": True, "version": version, "started": runtime.started()}
    if jax_facts["started"]:
        gpus = [short_name(gpu) for gpu in runtime.physical_devices("GPU")]
        jax_facts |= {"physical_gpus": gpus, "visible_gpus": gpus}
    return jax_facts | {"platforms": jax_platforms(), "tensorflow": tensorflow_beside()}


def read_tensorflow() -> dict[str, Any]:
    """Imports TensorFlow and returns its version and GPUs, without starting them."""
    sync_environment()
    try:
        version = runtime.tensorflow().__version__
    except RuntimeMissingError as error:
        return {"imported": False, "error": error.message}
    return {
        "imported": True,
        "version": version,
        "started": runtime.started(),
        "physical_gpus": [short_name(gpu) for gpu in runtime.physical_devices("GPU")],
        "visible_gpus": [short_name(gpu) for gpu in runtime.visible_devices("GPU")],
    }


def read_session(facts: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Lists the GPUs in this session too: a child's list covers the computer, not this session.

    JAX is only imported, which starts none.
    """
    known = parse_facts(facts)
    if known.backend == "jax":
        with suppress(RuntimeMissingError):
            jax()
        _read_into(facts, "jax", read_imported)
    elif known.tensorflow.physical_gpus is None:
        _read_into(facts, "tensorflow", read_tensorflow)
    read_import_error(facts)


def read_import_error(facts: dict[str, Any]) -> None:
    """Reads why the backend cannot be imported in this session, if that was tried."""
    known = parse_facts(facts)
    error = known.runtime.error
    if error:
        _read_into(facts, "import_error", lambda: load_errors.read_load_error(error, known.backend))


def read_own_use(facts: dict[str, Any], model: Model, data: Any) -> None:
    """Trains the user's model for a few steps on the current device.

    Args:
        facts: The facts so far, changed in place.
        model: A compiled Keras model.
        data: A dataset that fits the model.

    Raises:
        GpuKerasError: if the model cannot be trained at all.
    """
    from gpukeras.diagnostics import usage  # imports all of `data`, which not every check needs

    def read() -> dict[str, Any]:
        return usage.read_use(model, data, current().device)

    _read_into(facts, "use", read, raised=GpuKerasError)


LAYERS: Mapping[str, Callable[[dict[str, Any], Mapping[str, str]], None]] = {
    "listings": read_listings,
    "session": read_session,
    "compute": read_proof,
}
