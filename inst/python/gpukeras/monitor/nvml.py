"""Samples GPUs with NVML, the driver's monitoring library, through the package nvidia-ml-py.

NVML queries the driver: it runs nothing on the card and takes none of its memory. A value that a
card does not report is None. NVML lists all GPUs in PCI order and ignores CUDA_VISIBLE_DEVICES, so
this module applies that variable as CUDA does and skips cards hidden from the sampled process.
Where cards are of different kinds it asks CUDA, which counts the fastest first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpukeras.monitor.fields import Gpu, explain_throttling
from gpukeras.system.host import as_text, choose_visible, list_handles, read_cuda_order

PCIE_UNIT = 1024.0  # nvmlDeviceGetPcieThroughput returns KiB per second
LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, NO_PERMISSION = 12, 9, 4  # nvmlReturn_t


class Pcie:
    """A thread that measures PCI Express throughput in bytes per second.

    NVML watches a counter for 20 ms for each direction of each card, so eight cards would take more
    than the default interval. A thread measures instead, and a sample uses its last measurement.

    Args:
        measure: Returns bytes per second received and sent; may block.
    """

    def __init__(self, measure: Callable[[], tuple[float | None, float | None]]) -> None:
        """Starts the thread and a first measurement."""
        self._measure = measure
        self._latest: tuple[float | None, float | None] = (None, None)
        self._requested = threading.Event()
        self._requested.set()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while self._requested.wait():
            self._requested.clear()
            self._latest = self._measure()

    def take(self) -> tuple[float | None, float | None]:
        """Returns the last measurement, at most one interval old, and requests the next."""
        self._requested.set()
        return self._latest


class GpuReader:
    """A GPU that is sampled repeatedly through NVML.

    Args:
        nvml: The module pynvml, initialized.
        handle: NVML handle of a card or a MIG slice.
        device: Device name such as "GPU:0".
    """

    def __init__(self, nvml: Any, handle: Any, device: str) -> None:
        """Reads the constant properties and starts the PCI Express thread."""
        self._nvml, self._handle = nvml, handle
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        self.gpu = Gpu(
            device=device,
            name=as_text(self._ask("nvmlDeviceGetName")) + _mark_stand_in(nvml),
            uuid=as_text(self._ask("nvmlDeviceGetUUID")),
            memory_total_bytes=None if memory is None else float(memory.total),
            power_limit_w=None if limit is None else limit / 1000,
        )
        self._pcie = Pcie(self._measure_pcie)
        self._before = self._ask("nvmlDeviceGetTotalEnergyConsumption")

    def read_joules(self) -> float | None:
        """Returns the energy since this reader was made, by the card's counter; None without."""
        now = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if now is None or self._before is None or now < self._before:  # a new driver starts at 0
            return None
        return float(now - self._before) / 1000

    def read(self) -> list[Any]:
        """Returns a value for each of `DEVICE_UNITS`, then the throttling text."""
        used = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        power = self._ask("nvmlDeviceGetPowerUsage")
        return [
            None if used is None else used.gpu,
            None if used is None else used.memory,
            None if memory is None else memory.used,
            None if power is None else power / 1000,
            self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            *self._pcie.take(),
            explain_throttling(self._read_reasons()),
        ]

    def _read_reasons(self) -> int | None:
        # Drivers before 535 have the older name only.
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return (
            self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons
        )

    def _measure_pcie(self) -> tuple[float | None, float | None]:
        counters = (self._nvml.NVML_PCIE_UTIL_RX_BYTES, self._nvml.NVML_PCIE_UTIL_TX_BYTES)
        rates = [self._ask("nvmlDeviceGetPcieThroughput", counter) for counter in counters]
        received, sent = (None if rate is None else rate * PCIE_UNIT for rate in rates)
        return received, sent

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Returns NVML's result; None if the card, driver or package does not support it."""
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def _mark_stand_in(nvml: Any) -> str:
    # A record made with a simulated driver must not pass for one of a real card; see probes.driver.
    return " (simulated)" if hasattr(nvml.nvmlLib, "gpukeras_simulated_driver") else ""


def open_gpus(visible: str | None) -> tuple[list[GpuReader], str]:
    """Returns readers of the GPUs that a process may use, and one sentence on why there is none.

    Args:
        visible: The process's CUDA_VISIBLE_DEVICES, or None if unset.
    """
    try:
        import pynvml
    except ImportError:
        return [], "The Python package nvidia-ml-py, which asks GPUs, is not installed."
    try:
        pynvml.nvmlInit()
        handles = _find_handles(pynvml, visible)
    except pynvml.NVMLError as error:
        return [], explain_error(error.value, str(error))
    readers = [GpuReader(pynvml, handle, f"GPU:{i}") for i, handle in enumerate(handles)]
    return readers, "" if readers else explain_none(visible)


def _find_handles(pynvml: Any, visible: str | None) -> list[Any]:
    handles = list_handles(pynvml)
    order = None
    with suppress(pynvml.NVMLError):  # a lost card has no name
        order = read_cuda_order([as_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles])
    if visible is None and order is None:
        return handles
    uuids = [as_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    if order and set(order) <= set(uuids):  # else there are slices of cards
        return [handles[uuids.index(uuid)] for uuid in order]
    if visible is None:
        return handles
    return [
        pynvml.nvmlDeviceGetHandleByUUID(card.encode()) if isinstance(card, str) else handles[card]
        for card in choose_visible(uuids, visible)
    ]


def explain_error(code: int, text: str) -> str:
    """Explains in one sentence why NVML shows no GPU.

    Args:
        code: NVML's return code (nvmlReturn_t).
        text: NVML's error message.
    """
    known = {
        LIBRARY_NOT_FOUND: "There is no NVIDIA driver on this computer (no libnvidia-ml.so.1).",
        DRIVER_NOT_LOADED: "The NVIDIA driver is installed but not loaded.",
        NO_PERMISSION: "This user may not ask the NVIDIA driver.",
    }
    return known.get(code, f"NVML, the NVIDIA driver's monitoring library, says: {text}.")


def explain_none(visible: str | None) -> str:
    """Explains in one sentence why there is no GPU to sample although NVML works."""
    if visible is None:
        return "The NVIDIA driver shows no GPU."
    return f'CUDA_VISIBLE_DEVICES is "{visible}", which shows this process no GPU.'
