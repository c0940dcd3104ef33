"""What of a GPU's memory counts as free, by what driver and framework say of it."""

import os
from types import SimpleNamespace

import pytest

from gpukeras.backend import devices, jax_backend, runtime
from gpukeras.system import host
from gpukeras.system.host import NvmlGpu

GIB = 2**30
CARD = "NVIDIA A100-SXM4-80GB"
GPU = SimpleNamespace(name="/physical_device:GPU:0")


@pytest.fixture
def tell(monkeypatch):
    """Lets driver and framework tell of one GPU, in GiB."""

    def tell(free, used=0.0, peak=0.0, own=None, limit=None, started=True):
        processes = () if own is None else ((os.getpid(), own * GIB), (1, 3.0 * GIB))
        card = NvmlGpu(CARD, "GPU-1", 80.0 * GIB, free * GIB, processes)
        told = {
            "visible_devices": lambda kind: [GPU],
            "physical_devices": lambda kind: [GPU],
            "device_details": lambda gpu: {"device_name": CARD},
            "started": lambda: started,
            "memory_info": lambda device: {"current": int(used * GIB), "peak": int(peak * GIB)},
            "usable_bytes": lambda gpu: None if limit is None else int(limit * GIB),
        }
        for name, function in told.items():
            monkeypatch.setattr(runtime, name, function)
        monkeypatch.setattr(host, "read_nvml", lambda: [card])

    return tell


@pytest.mark.parametrize(
    ("told", "free"),
    [
        ({"free": 70.0, "started": False}, 70.0),
        ({"free": 70.0, "used": 5.0, "peak": 5.0}, 70.0),
        # 30 GiB were taken by an earlier training, of which 5 are used now.
        ({"free": 45.0, "used": 5.0, "peak": 30.0}, 70.0),
        # The framework took all at its start: the driver has nothing left.
        ({"free": 0.0, "used": 5.0, "peak": 6.0, "own": 75.5}, 70.0),
        ({"free": 45.0, "used": 5.0, "peak": 30.0, "own": 20.0}, 70.0),
        # JAX takes three quarters of a card at most.
        ({"free": 79.0, "limit": 60.0}, 60.0),
        ({"free": 45.0, "used": 5.0, "peak": 30.0, "limit": 60.0}, 55.0),
        ({"free": 10.0, "limit": 60.0}, 10.0),
        ({"free": 0.0, "used": 61.0, "peak": 61.0, "limit": 60.0}, 0.0),
    ],
)
def test_what_the_framework_holds_and_does_not_use_is_free(tell, told, free):
    tell(**told)
    assert devices.free_bytes("GPU:0") == free * GIB


def test_other_processes_may_take_what_nobody_holds(tell):
    tell(free=45.0, used=5.0, peak=30.0, limit=60.0)
    assert devices.unheld_bytes(0) == 45.0 * GIB
    assert devices.unheld_bytes(1) is None
    assert devices.gpu_bytes("GPU:0") == 60.0 * GIB


@pytest.mark.parametrize("share", jax_backend.SHARES)
def test_jax_has_a_limit_where_its_memory_grows_too(monkeypatch, share):
    stats = {"bytes_limit": 60 * GIB, "bytes_in_use": 1}
    device = jax_backend.JaxDevice("GPU:0", SimpleNamespace(memory_stats=lambda: stats))
    for name in jax_backend.SHARES:
        monkeypatch.delenv(name, raising=False)
    assert jax_backend.usable_bytes(device) == 60 * GIB
    assert jax_backend.memory_limit(device) is None  # nobody asked for one
    assert jax_backend.usable_share() == 0.75
    assert jax_backend.find_share() == "XLA_PYTHON_CLIENT_MEM_FRACTION"
    monkeypatch.setenv(share, ".9")
    assert jax_backend.find_share() == share
    assert jax_backend.memory_limit(device) == 60 * 1024
    assert jax_backend.usable_share() == 0.9
    silent = jax_backend.JaxDevice("GPU:0", SimpleNamespace(memory_stats=lambda: None))
    assert jax_backend.usable_bytes(silent) is None


@pytest.mark.parametrize(
    ("before", "after", "peak"),
    [
        ((5.0, 5.0), (5.0, 9.0), 9.0),  # the reset worked, or nothing ran before
        ((5.0, 5.0), (5.0, 5.0), 5.0),
        ((5.0, 30.0), (5.0, 30.0), None),  # of an earlier training, on JAX
        ((5.0, 30.0), (5.0, 31.0), 31.0),
    ],
)
def test_a_peak_of_before_is_not_told_as_that_of_now(tell, monkeypatch, before, after, peak):
    monkeypatch.setattr(runtime, "reset_memory_peak", lambda device: None)
    tell(free=40.0, used=before[0], peak=before[1])
    kept = devices.reset_peak("GPU:0")
    tell(free=40.0, used=after[0], peak=after[1])
    assert devices.peak_bytes("GPU:0", kept) == (None if peak is None else peak * GIB)
    assert devices.peak_bytes("CPU:0", devices.reset_peak("CPU:0")) is None
