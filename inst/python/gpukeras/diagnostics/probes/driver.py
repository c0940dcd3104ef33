"""Queries the NVIDIA driver directly.

    python -m gpukeras.diagnostics.probes.driver [file of libcudnn]

TensorFlow does not report some reasons for a missing GPU: no NVML, a failing NVML, no device. This
program therefore calls libcuda and NVML through ctypes, with the standard library alone. It prints
JSON with the keys `cuda`, `nvml` and `cudnn` (None unless a file was given): one line after each
library, so that a crash in one leaves the results of the others. The last line is the result.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_uint64, c_void_p
from typing import Any
from uuid import UUID

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"

NOT_SUPPORTED = 3  # nvmlReturn_t; see codes.py
# Errors that describe the GPU's state, from any query; other errors concern one query only.
GPU_ERRORS = (10, 11, 15, 16, 17)

COMPUTE_MODE, MULTIPROCESSORS, MAJOR, MINOR = 20, 16, 75, 76  # CUdevice_attribute
CUDA_FIELDS = ("name", "capability", "compute_mode", "multiprocessors", "total_bytes", "uuid")
NVML_NUMBERS = {
    "compute_mode": "nvmlDeviceGetComputeMode",
    "link_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "link_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "link_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "link_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
}
NVML_FIELDS = (
    *("name", "uuid", "total_bytes", "free_bytes", "mig", "mig_devices"),
    *NVML_NUMBERS,
    *("throttle", "utilization", "processes"),
)
THROTTLE = (  # the newest name first
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
PROCESSES = (  # the same record since version 2; version 1 has a shorter one
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
MOST_PROCESSES = 1024
UNKNOWN_BYTES = 2**64 - 1  # reported by Windows drivers, also under WSL


class Memory(ctypes.Structure):
    """The C struct nvmlMemory_t."""

    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


class Utilization(ctypes.Structure):
    """The C struct nvmlUtilization_t, in percent."""

    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Process(ctypes.Structure):
    """The C struct nvmlProcessInfo_v2_t."""

    _fields_ = (
        ("pid", c_uint),
        ("bytes", c_uint64),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


# Any library -------------------------------------------------------------------------------------


def read_library(name: str, read: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Loads a library and returns the facts from `read`, its file and whether it loaded."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return {"loaded": False, "error": str(error)}
    # The simulated drivers of the tests export this symbol, so that a report on one never passes
    # for a report on a real driver.
    simulated = hasattr(library, "gpukeras_simulated_driver")
    facts = {"loaded": True, "error": "", "path": find_mapped(name), "simulated": simulated}
    try:
        return {**facts, **read(library)}
    except Exception as error:  # failures of the driver are reported as facts
        return {**facts, "error": f"{type(error).__name__}: {error}"}


def find_mapped(name: str, maps: str = "/proc/self/maps") -> str | None:
    """Returns the file of a loaded library, "" if it is not mapped; None if not determined."""
    stem = os.path.basename(name).partition(".so")[0] + ".so"
    try:
        with open(maps, errors="replace") as file:
            paths = parse_memory_map(file.read())
    except OSError:
        return None
    return next((path for path in paths if os.path.basename(path).startswith(stem)), "")


def parse_memory_map(text: str) -> list[str]:
    """Returns the distinct files in the text of /proc/PID/maps."""
    rows = [line.split(maxsplit=5) for line in text.splitlines()]
    files = [row[5].strip() for row in rows if len(row) == 6 and row[5].startswith("/")]
    return list(dict.fromkeys(file.removesuffix(" (deleted)") for file in files))


def call(library: Any, name: str, *arguments: Any) -> int | None:
    """Calls a library function; returns None if the library lacks it, as an older one may."""
    function = getattr(library, name, None)
    return None if function is None else int(function(*arguments))


def decode_text(buffer: Any) -> str:
    """Decodes the text in a buffer that a C function filled."""
    return bytes(buffer.value).decode(errors="replace")


# libcuda -----------------------------------------------------------------------------------------


def read_cuda(library: Any) -> dict[str, Any]:
    """Returns the driver's CUDA version, the result of cuInit, and the GPUs."""
    facts: dict[str, Any] = dict.fromkeys(("count_status", "count"))
    facts["init"] = call(library, "cuInit", c_uint(0))
    facts["error"] = describe_result(library, facts["init"])
    facts["driver_version"] = ask_cuda(library, "cuDriverGetVersion")
    count = c_int()
    if facts["init"] == 0:
        facts["count_status"] = call(library, "cuDeviceGetCount", byref(count))
    if facts["count_status"] == 0:
        facts["count"] = count.value
    return {**facts, "devices": [read_cuda_device(library, i) for i in range(count.value)]}


def describe_result(library: Any, result: int | None) -> str:
    """Returns the driver's message for a CUresult, "" for success."""
    text = ctypes.c_char_p()
    known = result and call(library, "cuGetErrorString", c_int(result), byref(text)) == 0
    return (text.value or b"").decode(errors="replace") if known else ""


def ask_cuda(library: Any, name: str, *arguments: Any, kind: Any = c_int) -> Any:
    """Returns the value a libcuda function writes to its first argument; None if it fails.

    Args:
        library: The loaded libcuda.
        name: Name of the function.
        *arguments: Arguments after the first.
        kind: ctypes type of the value.
    """
    answer = kind()
    return answer.value if call(library, name, byref(answer), *arguments) == 0 else None


def read_cuda_device(library: Any, ordinal: int) -> dict[str, Any]:
    """Reads a GPU by its CUDA ordinal; a field that cannot be read is None."""
    device = ask_cuda(library, "cuDeviceGet", c_int(ordinal))
    if device is None:
        return dict.fromkeys(CUDA_FIELDS)
    mode, processors, major, minor = (
        ask_cuda(library, "cuDeviceGetAttribute", c_int(attribute), c_int(device))
        for attribute in (COMPUTE_MODE, MULTIPROCESSORS, MAJOR, MINOR)
    )
    total = ask_cuda(library, "cuDeviceTotalMem_v2", c_int(device), kind=ctypes.c_size_t)
    return {
        "name": read_cuda_name(library, device),
        "capability": None if None in (major, minor) else f"{major}.{minor}",
        "compute_mode": mode,
        "multiprocessors": processors,
        "total_bytes": None if total is None else float(total),
        "uuid": read_cuda_uuid(library, device),
    }


def read_cuda_name(library: Any, device: int) -> str | None:
    """Returns a GPU's product name."""
    buffer = ctypes.create_string_buffer(256)
    status = call(library, "cuDeviceGetName", buffer, c_int(len(buffer)), c_int(device))
    return decode_text(buffer) if status == 0 else None


def read_cuda_uuid(library: Any, device: int) -> str | None:
    """Returns a GPU's UUID in the format of NVML and nvidia-smi; for a MIG slice its GPU's UUID."""
    buffer = (ctypes.c_ubyte * 16)()
    status = call(library, "cuDeviceGetUuid", byref(buffer), c_int(device))
    return decode_uuid(bytes(buffer)) if status == 0 else None


def decode_uuid(raw: bytes) -> str:
    """Formats 16 bytes as a GPU's UUID."""
    return f"GPU-{UUID(bytes=raw)}"


# NVML --------------------------------------------------------------------------------------------


def read_nvml(library: Any) -> dict[str, Any]:
    """Returns the result of nvmlInit, the driver's versions and all GPUs, visible or not."""
    facts: dict[str, Any] = dict.fromkeys(("driver", "cuda_version", "count_status", "count"))
    facts["init"] = call(library, "nvmlInit_v2")
    facts["error"] = describe_return(library, facts["init"])
    count = c_uint()
    if facts["init"] == 0:
        facts["driver"] = read_nvml_driver(library)
        facts["cuda_version"] = read_nvml_cuda(library)
        facts["count_status"] = call(library, "nvmlDeviceGetCount_v2", byref(count))
    if facts["count_status"] == 0:
        facts["count"] = count.value
    return {**facts, "devices": [read_nvml_device(library, i) for i in range(count.value)]}


def describe_return(library: Any, status: int | None) -> str:
    """Returns NVML's message for a return code, "" for success."""
    function = getattr(library, "nvmlErrorString", None)
    if not status or function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function(c_int(status)) or b"").decode(errors="replace")


def read_nvml_driver(library: Any) -> str | None:
    """Returns the driver's version, such as 550.54.15."""
    buffer = ctypes.create_string_buffer(80)
    status = call(library, "nvmlSystemGetDriverVersion", buffer, c_uint(len(buffer)))
    return decode_text(buffer) if status == 0 else None


def read_nvml_cuda(library: Any) -> int | None:
    """Returns the newest CUDA version that the driver supports, such as 12040."""
    version = c_int()
    status = call(library, "nvmlSystemGetCudaDriverVersion_v2", byref(version))
    return version.value if status == 0 else None


class NvmlDevice:
    """A GPU queried through NVML; `status` keeps the first error that describes the GPU's state."""

    def __init__(self, library: Any, index: int) -> None:
        """Gets the GPU's handle."""
        self.library, self.handle = library, c_void_p()
        name = "nvmlDeviceGetHandleByIndex_v2"
        self.status = call(library, name, c_uint(index), byref(self.handle))

    def call(self, name: str, *arguments: Any) -> int | None:
        """Calls an NVML function on this GPU and returns its status."""
        status = call(self.library, name, self.handle, *arguments)
        if self.status == 0 and status in GPU_ERRORS:
            self.status = status
        return status

    def ask(self, name: str, kind: Any = c_uint) -> Any:
        """Returns the value that a function writes to its second argument; None if it fails."""
        answer = kind()
        return answer if self.call(name, byref(answer)) == 0 else None

    def ask_number(self, name: str, kind: Any = c_uint) -> int | None:
        """Returns the number that a function writes; None if it fails."""
        answer = self.ask(name, kind)
        return None if answer is None else answer.value

    def ask_text(self, name: str) -> str | None:
        """Returns the text that a function writes to a buffer; None if it fails."""
        buffer = ctypes.create_string_buffer(96)
        status = self.call(name, buffer, c_uint(len(buffer)))
        return decode_text(buffer) if status == 0 else None


def read_nvml_device(library: Any, index: int) -> dict[str, Any]:
    """Reads a GPU by its index in PCI order; a field that cannot be read is None."""
    device = NvmlDevice(library, index)
    if device.status != 0:
        return {"status": device.status, **dict.fromkeys(NVML_FIELDS)}
    memory = device.ask("nvmlDeviceGetMemoryInfo", Memory)
    used = device.ask("nvmlDeviceGetUtilizationRates", Utilization)
    throttles = (device.ask_number(name, c_uint64) for name in THROTTLE)
    mig, instances = read_mig(device)
    facts = {
        "name": device.ask_text("nvmlDeviceGetName"),
        "uuid": device.ask_text("nvmlDeviceGetUUID"),
        "total_bytes": None if memory is None else float(memory.total),
        "free_bytes": None if memory is None else float(memory.free),
        "mig": mig,
        "mig_devices": instances,
        **{field: device.ask_number(name) for field, name in NVML_NUMBERS.items()},
        "throttle": next((bits for bits in throttles if bits is not None), None),
        "utilization": None if used is None else used.gpu,
        "processes": read_processes(device),
    }
    return {"status": device.status, **facts}


def read_mig(device: NvmlDevice) -> tuple[bool | None, int | None]:
    """Returns whether MIG is enabled on the GPU, and the number of MIG slices."""
    current, pending = c_uint(), c_uint()
    status = device.call("nvmlDeviceGetMigMode", byref(current), byref(pending))
    if status == NOT_SUPPORTED:
        return False, 0
    if status != 0:
        return None, None
    slots = device.ask_number("nvmlDeviceGetMaxMigDeviceCount") if current.value else 0
    return bool(current.value), None if slots is None else count_mig_devices(device, slots)


def count_mig_devices(device: NvmlDevice, slots: int) -> int:
    """Counts the slots that hold a MIG slice."""
    name, handle = "nvmlDeviceGetMigDeviceHandleByIndex", c_void_p()
    return sum(device.call(name, c_uint(slot), byref(handle)) == 0 for slot in range(slots))


def read_processes(device: NvmlDevice) -> list[dict[str, Any]] | None:
    """Returns the processes that compute on the GPU; None if not determined."""
    records = (Process * MOST_PROCESSES)()
    for name in PROCESSES:
        count = c_uint(MOST_PROCESSES)
        if device.call(name, byref(count), records) == 0:
            return [decode_process(record) for record in records[: count.value]]
    return None


def decode_process(record: Process) -> dict[str, Any]:
    """Converts NVML's record of a process on a GPU to a dict."""
    known = record.bytes != UNKNOWN_BYTES
    return {
        "pid": record.pid,
        "bytes": float(record.bytes) if known else None,
        "program": read_program(record.pid),
    }


def read_program(pid: int, root: str = "/proc") -> str:
    """Returns the name of a process's program, never its arguments; "" if not readable."""
    try:
        with open(f"{root}/{pid}/cmdline", errors="replace") as file:
            return parse_program(file.read())
    except OSError:
        return ""


def parse_program(command: str) -> str:
    """Parses the program's name in the text of /proc/PID/cmdline."""
    # A program that renames itself ("worker: job 7") replaces its path by its whole title.
    words = command.partition("\0")[0].split()
    return os.path.basename(words[0]).rstrip(":") if words else ""


# cuDNN -------------------------------------------------------------------------------------------


def read_cudnn(library: Any) -> dict[str, Any]:
    """Returns the version of cuDNN, such as 91002; None if the library lacks the function."""
    function = getattr(library, "cudnnGetVersion", None)
    if function is None:
        return {"version": None}
    function.restype = ctypes.c_size_t
    return {"version": int(function())}


def main(arguments: list[str]) -> None:
    """Queries the libraries and prints all facts so far after each one."""
    facts: dict[str, Any] = dict.fromkeys(("cuda", "nvml", "cudnn"))
    print_facts(facts, "nvml", read_library(NVML, read_nvml))
    print_facts(facts, "cuda", read_library(CUDA, read_cuda))  # after NVML, because cuInit may hang
    if arguments:
        print_facts(facts, "cudnn", read_library(arguments[0], read_cudnn))


def print_facts(facts: dict[str, Any], section: str, found: dict[str, Any]) -> None:
    """Adds a section and prints all facts.

    Args:
        facts: The facts so far, changed in place.
        section: Key of the section.
        found: Facts of the section.
    """
    facts[section] = found
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
