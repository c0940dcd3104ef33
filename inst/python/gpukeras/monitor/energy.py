"""Measures energy: counters of the GPU's driver and of the processor, or watts over time.

A GPU from Volta on counts its energy (`nvmlDeviceGetTotalEnergyConsumption`, millijoules since the
driver was loaded). Of others, the sampled watts are integrated by the trapezoidal rule. Processors
of Intel and AMD count theirs as microjoules, which Linux shows as files (RAPL):

    /sys/class/powercap/intel-rapl:0/name                 package-0
    /sys/class/powercap/intel-rapl:0/energy_uj            a counter that starts anew at
    /sys/class/powercap/intel-rapl:0/max_energy_range_uj  this value
    /sys/class/powercap/intel-rapl:0/intel-rapl:0:2/name  dram, which the package does not include

See https://docs.kernel.org/power/powercap/powercap.html. Since Linux 5.10 only root may read them,
as they tell about what other programs compute (CVE-2020-8694).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
JOULES_A_WH = 3600.0


@dataclass(frozen=True)
class EnergyUse:
    """The energy that a device used while a monitor ran.

    Args:
        device: "CPU" (all processors with their memory, for all programs) or such as "GPU:0".
        wh: Watt-hours, or None if not determined.
        mean_w: Mean watts over `seconds`, or None.
        seconds: The time that was measured: up to the last sample.
        source: What measured it, or why it is not determined, as the end of a sentence.
    """

    device: str
    wh: float | None
    mean_w: float | None
    seconds: float
    source: str


class Counter:
    """A counter that starts anew at a limit.

    Args:
        path: File with the counter, in microjoules.
        limit: The value, in microjoules, after which it is 0 again.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no number.
    """

    def __init__(self, path: Path, limit: int) -> None:
        """Reads the counter."""
        self._path, self._limit = path, limit
        self._last, self._total = self._count(), 0

    def read(self) -> float:
        """Returns the joules since the counter was made; call it more than once a limit."""
        now = self._count()
        self._total += (now - self._last) % (self._limit + 1)
        self._last = now
        return self._total / 1e6

    def _count(self) -> int:
        return int(self._path.read_text(encoding="ascii"))


class Rapl:
    """The energy of this computer's processors and their memory.

    Args:
        root: The folder with the kernel's power zones.

    Attributes:
        error: Why it is not measured, as the end of a sentence, or "".
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        """Finds and opens the counters."""
        self.error, self._counters = "", []
        zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _is_counted(zone)]
        if not zones:
            self.error = "this computer has no counter of its processor's energy (RAPL)"
        try:
            self._counters = [_open_zone(zone) for zone in zones]
        except PermissionError:
            self.error = "only root may read the counter of the processor's energy (RAPL)"
        except (OSError, ValueError):
            self.error = "the counter of the processor's energy (RAPL) cannot be read"

    def read(self) -> float | None:
        """Returns the joules since the start, of all counters; None if one cannot be read."""
        try:
            return sum(counter.read() for counter in self._counters) if self._counters else None
        except (OSError, ValueError):
            return None


def _is_counted(zone: Path) -> bool:
    """Whether a zone is a package or memory: the others are parts of these, or all of it again."""
    try:
        name = (zone / "name").read_text(encoding="ascii").strip()
    except OSError:
        return False
    return name.startswith("package") or name == "dram"


def _open_zone(zone: Path) -> Counter:
    limit = int((zone / "max_energy_range_uj").read_text(encoding="ascii"))
    return Counter(zone / "energy_uj", limit)


# From samples -------------------------------------------------------------------------------------


def measure_cpu(times: Sequence[float], joules: Sequence[float | None], error: str) -> EnergyUse:
    """Returns the energy of the processors.

    Args:
        times: Seconds of the samples, from the start.
        joules: The counters at these times, or None.
        error: Why there are none, or "".
    """
    counted = _last_count(times, joules)
    if counted is None:
        return EnergyUse("CPU", None, None, 0.0, error or "there was no sample")
    return _use("CPU", *counted, "the processor's counters of packages and memory (RAPL)")


def measure_gpu(
    device: str, times: Sequence[float], joules: Sequence[float | None], watts: Sequence[float]
) -> EnergyUse:
    """Returns the energy of a GPU: by its counter, else by its watts over time.

    The counter is preferred, since watts are samples of a mean over up to a second.

    Args:
        device: Its name, such as "GPU:0".
        times: Seconds of the samples, from the start.
        joules: Its counter at these times, or None.
        watts: Its power at these times, NaN where it was not told.
    """
    counted = _last_count(times, joules)
    if counted is not None:
        return _use(device, *counted, "the card's counter")
    told = [(at, power) for at, power in zip(times, watts, strict=True) if math.isfinite(power)]
    if not told:
        return EnergyUse(device, None, None, 0.0, "the card tells neither energy nor power")
    told = [(0.0, told[0][1]), *told]  # before the first sample as at it
    area = sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(told))
    return _use(device, told[-1][0], area, "the card's watts over time")


def _last_count(
    times: Sequence[float], joules: Sequence[float | None]
) -> tuple[float, float] | None:
    told = [(at, value) for at, value in zip(times, joules, strict=True) if value is not None]
    return told[-1] if told else None


def _use(device: str, seconds: float, joules: float, source: str) -> EnergyUse:
    mean = joules / seconds if seconds > 0 else None
    return EnergyUse(device, joules / JOULES_A_WH, mean, seconds, source)
