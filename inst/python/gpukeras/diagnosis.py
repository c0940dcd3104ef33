"""`gpu_check()`: reads the facts, proves the GPU in a child process, and has them judged."""

from __future__ import annotations

import getpass
import importlib.metadata
import importlib.util
import json
import mmap
import platform
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import machine, runtime
from .devices import short_name
from .environment import child_environment, read_environment, sync_environment
from .errors import RuntimeMissingError
from .judgement import Diagnosis, format_check, format_facts, judge, redact
from .signs import WHEELS

PACKAGES = (*WHEELS, "tensorflow-metal", "keras", "numpy", "nvidia-ml-py")
# Libraries that TensorFlow opens at its start, by CUDA's major version; cuDNN's is in build_info.
SONAMES = {
    "12": (
        "libcudart.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcufft.so.11",
        "libcusolver.so.11",
        "libcusparse.so.12",
    )
}
PROBE_LIMIT_S = 120


@dataclass(frozen=True)
class Check(Diagnosis):
    """A diagnosis with the facts that it stands on."""

    facts: dict[str, Any]


def check(session: Mapping[str, Any] | None = None) -> Check:
    """Why the GPU is used or not. Never raises on an odd machine, never starts TensorFlow here.

    Args:
        session: What R knows: `python`, `version`, `forced`, `numpy`, `reticulate`,
            `tensorflow_r_loaded`, and `environment`, R's reading of set variables by name.
    """
    facts = read_facts(session)
    diagnosis = judge(facts)
    return Check(**vars(diagnosis), facts=facts)


def report(session: Mapping[str, Any] | None = None) -> str:
    """The check as plain text for a bug report, without the names of user, host and home."""
    found = check(session)
    lines = [*format_check(found), "", "Facts", *format_facts(found.facts)]
    return redact("\n".join(lines), **read_names())


# Facts -------------------------------------------------------------------------------------------


def read_facts(session: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All facts that can be read; what cannot is None and has its reason in `unread`."""
    known = dict(session) if isinstance(session, Mapping) else {}
    readings = known.pop("environment", None)
    seen_by_r = dict(readings) if isinstance(readings, Mapping) else {} if known else None
    readers: dict[str, Callable[[], Any]] = {
        "platform": read_platform,
        "hardware": lambda: {"nvidia_gpus": machine.read_pci_gpus()},
        "driver": machine.read_driver,
        "container": machine.read_container,
        "slurm": machine.read_slurm,
        "environment": lambda: read_environment(seen_by_r),
        "python": lambda: read_python(known),
        "packages": read_packages,
        "build": read_build,
        "tensorflow": read_tensorflow,
        "keras": read_keras,
    }
    facts: dict[str, Any] = {"session": known, "unread": {}}
    for name, read in readers.items():
        _read_into(facts, name, read)
    _read_into(facts, "libraries", lambda: read_libraries(facts["build"] or {}))
    _read_into(facts, "proof", lambda: read_proof(facts))
    return facts


def _read_into(facts: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    try:
        facts[name] = read()
    except Exception as error:  # an odd machine must not end the check
        facts[name] = None
        facts["unread"][name] = f"{type(error).__name__}: {error}"


def read_platform() -> dict[str, str]:
    """The operating system."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
    }


def read_python(session: Mapping[str, Any]) -> dict[str, str]:
    """The Python that runs; R knows its program's path better than an embedded Python does."""
    executable = session.get("python")
    return {
        "executable": executable if isinstance(executable, str) else sys.executable,
        "version": platform.python_version(),
        "prefix": sys.prefix,
    }


def read_packages() -> dict[str, str]:
    """Versions of the packages that matter, NVIDIA's libraries among them."""
    found = {
        re.sub(r"[-_.]+", "-", dist.metadata["Name"] or "").lower(): dist.version
        for dist in importlib.metadata.distributions()
    }
    wanted = [name for name in found if name in PACKAGES or name.startswith("nvidia-")]
    return {name: found[name] for name in sorted(wanted)}


def find_tensorflow() -> Path | None:
    """The folder of the installed TensorFlow, without importing it."""
    spec = importlib.util.find_spec("tensorflow")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def read_build() -> dict[str, Any] | None:
    """How TensorFlow was built, from its own file, without importing it."""
    folder = find_tensorflow()
    if folder is None:
        return None
    names = runpy.run_path(str(folder / "python/platform/build_info.py"))
    build = dict(names["build_info"])
    if build.get("is_cuda_build"):
        build["searches_cusolver"] = contains(
            folder / "libtensorflow_framework.so.2", b"nvidia/cusolver/lib"
        )
    return build


def contains(path: Path, needle: bytes) -> bool | None:
    """Whether a file holds these bytes (a library its search path); None without the file."""
    if not path.is_file():
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(needle) >= 0


def read_libraries(build: Mapping[str, Any]) -> dict[str, str] | None:
    """Where each CUDA library lies that this build needs, "" if nowhere; None if not known."""
    names = SONAMES.get(str(build.get("cuda_version", "")).split(".")[0])
    folder = find_tensorflow()
    if names is None or folder is None or platform.system() != "Linux":
        return None
    cudnn = str(build.get("cudnn_version", "")).split(".")[0]
    names += (f"libcudnn.so.{cudnn}",) if cudnn else ()
    folders = _library_folders(folder.parent)
    cached = machine.read_library_cache()
    return {name: _find_library(name, folders) or cached.get(name, "") for name in names}


def _library_folders(site: Path) -> list[Path]:
    # The loader reads LD_LIBRARY_PATH once, when the process starts.
    started_with = machine.read_start_environment().get("LD_LIBRARY_PATH", "")
    given = [Path(folder) for folder in started_with.split(":") if folder]
    return [*sorted(site.glob("nvidia/*/lib")), *given, Path(sys.prefix) / "lib"]


def _find_library(name: str, folders: list[Path]) -> str:
    return next((str(folder / name) for folder in folders if (folder / name).exists()), "")


def read_tensorflow() -> dict[str, Any]:
    """Version and GPUs in this process, without starting them."""
    sync_environment()
    try:
        version = runtime.tensorflow().__version__
    except RuntimeMissingError as error:
        return {"error": error.message}
    return {
        "version": version,
        "started": runtime.started(),
        "physical_gpus": [short_name(gpu) for gpu in runtime.physical_devices("GPU")],
        "visible_gpus": [short_name(gpu) for gpu in runtime.visible_devices("GPU")],
    }


def read_keras() -> dict[str, str]:
    """Keras' backend: of the imported Keras, else what it would choose under gpukeras."""
    backend = getattr(sys.modules.get("keras"), "backend", None)
    if backend is not None:
        return {"backend": backend.backend()}
    return {"backend": runtime.python_variables().get("KERAS_BACKEND", "tensorflow")}


def read_names() -> dict[str, list[str]]:
    """Names that a report must not hold: of the user, the host and the home folder."""
    readers = (getpass.getuser, socket.gethostname, platform.node, lambda: str(Path.home()))
    names = []
    for read in readers:
        try:
            names.append(read())
        except Exception:  # no passwd entry, say
            names.append("")
    user, host, node, home = names
    return {"users": [user], "hosts": [host, node, host.split(".")[0]], "homes": [home]}


# Proof -------------------------------------------------------------------------------------------


def read_proof(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The proof of the first visible GPU, or None where TensorFlow lists none."""
    visible = (facts.get("tensorflow") or {}).get("visible_gpus")
    if not visible:
        return None
    return prove_device(visible[0], facts["python"]["executable"])


def prove_device(device: str, python: str = sys.executable) -> dict[str, Any]:
    """Computes on a device in a child process, so that a crash there is a finding here.

    Args:
        device: Such as "GPU:0", or "CPU:0".
        python: The Python to run.
    """
    environment = child_environment() | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    try:
        child = subprocess.run(
            [python, "-m", "gpukeras.probe", device],
            cwd=Path(__file__).parents[1],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        # Kernels may be compiling: for a GPU newer than the build that takes up to half an hour.
        error = f"the test did not end within {PROBE_LIMIT_S} s"
        return {"device": device, "ok": None, "error": error}
    return parse_proof(device, child.returncode, child.stdout, child.stderr)


def parse_proof(device: str, returncode: int, stdout: str, stderr: str) -> dict[str, Any]:
    """The child's answer, or what can be told of its end."""
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if returncode == 0 and lines:
        return json.loads(lines[-1])
    ended = f"exit status {returncode}"
    if returncode < 0:
        known = {number.value: number.name for number in signal.Signals}
        ended = f"killed by {known.get(-returncode, f'signal {-returncode}')}"
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in said if "ERROR" in line or "Check failed" in line]
    last = (telling or said or ["no message"])[-1]
    return {
        "device": device,
        "ok": False,
        "error": f"the child process ended ({ended}): {last[:300]}",
    }


def to_json(found: Check) -> str:
    """A check as JSON."""
    return json.dumps(asdict(found), indent=2)
