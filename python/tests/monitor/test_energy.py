"""Energy: counters that start anew, files as Linux has them, and watts over time."""

import numpy as np
import pytest

from gpukeras.monitor.energy import Counter, Rapl, measure_cpu, measure_gpu
from gpukeras.monitor.fields import DEVICE_UNITS, HOST_UNITS
from gpukeras.monitor.summary import DeviceSamples, read_energy


def add_zone(root, path, name, energy, limit=262143328850):
    zone = root / path
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{name}\n")
    (zone / "energy_uj").write_text(f"{energy}\n")
    (zone / "max_energy_range_uj").write_text(f"{limit}\n")
    return zone / "energy_uj"


@pytest.fixture
def computer(tmp_path):
    """A tree as /sys/class/powercap of a computer with two packages: all zones lie side by side."""
    files = {
        "package-0": add_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000),
        "package-1": add_zone(tmp_path, "intel-rapl:1", "package-1", 2_000_000),
        "dram": add_zone(tmp_path, "intel-rapl:0:1", "dram", 500_000),
        "core": add_zone(tmp_path, "intel-rapl:0:0", "core", 700_000),
        "psys": add_zone(tmp_path, "intel-rapl:2", "psys", 9_000_000),
        "again": add_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000),
    }
    return tmp_path, files


def grow(file, microjoules):
    file.write_text(f"{int(file.read_text()) + microjoules}\n")


def test_packages_and_memory_are_counted_once(computer):
    root, files = computer
    rapl = Rapl(root)
    assert (rapl.error, rapl.read()) == ("", 0.0)
    for file in files.values():
        grow(file, 3_000_000)
    assert rapl.read() == 9.0  # two packages and the memory


def test_a_counter_starts_anew_at_its_limit(tmp_path):
    file = add_zone(tmp_path, "intel-rapl:0", "package-0", 990, limit=999)
    counter = Counter(file, 999)
    file.write_text("5")  # 990 ... 999, 0 ... 5
    assert counter.read() == pytest.approx(15e-6)
    file.write_text("995")
    file.write_text("4")
    assert counter.read() == pytest.approx((15 + 999) * 1e-6)  # once a limit, at most


def test_what_cannot_be_read_is_said(computer, tmp_path):
    root, files = computer
    none = Rapl(root / "missing")
    assert none.error == "this computer has no counter of its processor's energy (RAPL)"
    assert none.read() is None
    files["dram"].write_text("no number")
    assert Rapl(root).error == "the counter of the processor's energy (RAPL) cannot be read"
    files["dram"].write_text("1")
    rapl = Rapl(root)
    files["dram"].unlink()
    assert rapl.read() is None


def test_a_counter_for_root_alone_is_said(computer, monkeypatch):
    root, files = computer

    def refuse(path, **options):
        raise PermissionError(13, "Permission denied")

    real = type(root).read_text
    monkeypatch.setattr(
        type(root), "read_text", lambda p, **o: (refuse if p.name == "energy_uj" else real)(p, **o)
    )
    assert Rapl(root).error == "only root may read the counter of the processor's energy (RAPL)"


def test_the_counter_is_preferred_to_watts():
    used = measure_gpu("GPU:0", [1.0, 2.0, 4.0], [100.0, 250.0, 720.0], [1e6, 1e6, 1e6])
    assert used.wh == pytest.approx(0.2)
    assert (used.mean_w, used.seconds, used.source) == (180.0, 4.0, "the card's counter")


def test_watts_are_integrated_where_they_were_told():
    times, watts = np.linspace(0.5, 10, 20), 50 + 10 * np.linspace(0.5, 10, 20)
    watts[[3, 7]] = np.nan  # samples that the card refused lie on the line between their neighbours
    used = measure_gpu("GPU:0", times, [None] * 20, watts)
    line = np.trapezoid if hasattr(np, "trapezoid") else np.trapz
    expected = 0.5 * watts[0] + line(50 + 10 * times, times)
    assert used.wh == pytest.approx(expected / 3600)
    assert used.source == "the card's watts over time"
    missing = measure_gpu("GPU:0", [1.0], [None], [float("nan")])
    assert (missing.wh, missing.source) == (None, "the card tells neither energy nor power")


def test_energy_of_recorded_samples():
    """Samples as the sampler writes them; those of an earlier one have no counters."""
    host = [0.0] * len(HOST_UNITS)
    lines = [[t, host, [], [3.6 * t, None, 7.2 * t]] for t in (1.0, 2.0, 500.0)]
    gpus = [
        DeviceSamples(f"GPU:{i}", samples={name: np.full(3, 36.0) for name in DEVICE_UNITS})
        for i in (0, 1)
    ]
    found = {one.device: one for one in read_energy({}, lines, gpus)}
    assert {name: one.wh for name, one in found.items()} == pytest.approx(
        {"GPU:0": 5.0, "GPU:1": 1.0, "CPU": 0.5}
    )
    assert found["CPU"].mean_w == pytest.approx(3.6)
    (cpu,) = read_energy({"energy_error": "only root may"}, [line[:3] for line in lines], [])
    assert (cpu.wh, cpu.source) == (None, "only root may")
    assert measure_cpu([], [], "").source == "there was no sample"
