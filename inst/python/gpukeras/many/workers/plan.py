"""Plans worker processes: how many, on which device, with how much memory and how many threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpukeras.backend import devices
from gpukeras.core.messages import count_of
from gpukeras.many.futures import Futures
from gpukeras.system.host import count_workers

# MiB of a card that no worker gets, and that a worker takes before its first model: CUDA's context
# and its libraries. Assumed from others' reports: never measured.
RESERVE_MIB, CONTEXT_MIB = 512, 768
MIB = 2**20


class WorkersError(Exception):
    """No worker can train the models; the text says why."""


@dataclass(frozen=True)
class GpuFacts:
    """A visible GPU.

    Args:
        name: Its name, such as "GPU:1", as `gpu_setup(device = )` takes it.
        free_mib: Memory that nobody holds, or None if unknown.
        total_mib: Its memory, or None if unknown.
    """

    name: str
    free_mib: int | None
    total_mib: int | None


@dataclass(frozen=True)
class WorkerFacts:
    """What decides about workers.

    Args:
        asked: Workers that the user asked for, "auto", or an engine that starts them.
        jobs: Trainings to be done.
        device: Where this process trains.
        gpus: The visible GPUs.
        cores: Cores that this process may use.
        need_mib: Memory of the largest model in training.
    """

    asked: int | str | Futures
    jobs: int
    device: str
    gpus: tuple[GpuFacts, ...]
    cores: int
    need_mib: int = 0


@dataclass(frozen=True)
class WorkerResources:
    """What a worker gets.

    Args:
        device: Its device, as `gpu_setup(device = )` takes it.
        threads: Its threads; None for those of its computer.
        memory_mib: The limit of its memory on a GPU that it shares; None for no limit.
        total_mib: The memory of that GPU, or None.
    """

    device: str
    threads: int | None
    memory_mib: int | None = None
    total_mib: int | None = None


@dataclass(frozen=True)
class WorkersPlan:
    """The workers of a training or a search.

    Args:
        workers: What each worker gets; none if models train one after another in this process.
        reason: Why; "" for one worker, which is none.
        futures: What starts them, or None: children of this process.
    """

    workers: tuple[WorkerResources, ...]
    reason: str
    futures: Futures | None = None


def read_worker_facts(asked: int | str | Futures, jobs: int, need_bytes: int) -> WorkerFacts:
    """Reads what decides about workers.

    Args:
        asked: Workers that the user asked for, "auto", or an engine that starts them.
        jobs: Trainings to be done.
        need_bytes: Memory of the largest model in training.
    """
    listed = [
        device for device in devices.read_devices() if device.kind == "GPU" and device.visible
    ]
    gpus = [
        GpuFacts(device.name, _as_mib(devices.unheld_bytes(place)), _as_mib(device.memory_bytes))
        for place, device in enumerate(listed)
    ]
    here = devices.current().device
    return WorkerFacts(asked, jobs, here, tuple(gpus), count_workers(), need_bytes // MIB)


def plan_workers(facts: WorkerFacts) -> WorkersPlan:
    """Plans the workers.

    Args:
        facts: What decides.
    """
    if facts.asked == 1:
        return WorkersPlan((), "")
    if facts.jobs < 2:
        return WorkersPlan((), "there is one model to train")
    if isinstance(facts.asked, Futures):
        count = min(facts.asked.count, facts.jobs)
        workers = (WorkerResources("auto", None),) * count
        return WorkersPlan(workers, f"{_count(count)} of future", facts.asked)
    if facts.device.startswith("CPU") or not facts.gpus:
        return _plan_cpu(facts)
    return _plan_gpus(facts)


def _plan_cpu(facts: WorkerFacts) -> WorkersPlan:
    if facts.asked == "auto":
        return WorkersPlan((), "on a CPU workers are started where `workers` asks for them")
    assert isinstance(facts.asked, int)
    count = min(facts.asked, facts.jobs)
    threads = max(1, facts.cores // count)
    each = count_of(threads, "thread")
    return WorkersPlan(
        (WorkerResources("cpu", threads),) * count, f"{_count(count)} with {each} each"
    )


def _plan_gpus(facts: WorkerFacts) -> WorkersPlan:
    """Plans workers on GPUs: in turn one on each card, as long as memory suffices."""
    wanted = facts.asked if isinstance(facts.asked, int) else len(facts.gpus)
    wanted = min(wanted, facts.jobs)
    rooms = [_count_room(gpu, facts.need_mib) for gpu in facts.gpus]
    places: list[int] = []
    while len(places) < min(wanted, sum(rooms)):
        free = [place for place, room in enumerate(rooms) if places.count(place) < room]
        places.append(min(free, key=places.count))
    if len(places) < 2:
        few = "one GPU trains one model at a time" if len(facts.gpus) == 1 else ""
        return WorkersPlan((), few if facts.asked == "auto" and few else _explain_little(facts))
    threads = max(1, facts.cores // len(places))
    workers = tuple(
        _share_gpu(facts.gpus[place], places.count(place), threads) for place in sorted(places)
    )
    cards = count_of(len(set(places)), "GPU")
    reason = f"{_count(len(workers))} on {cards}"
    if len(places) < wanted:
        reason += f": the free memory suffices for no more than {len(places)}"
    return WorkersPlan(workers, reason)


def _count_room(gpu: GpuFacts, need_mib: int) -> int:
    """Returns the workers that a card's free memory suffices for; one where it is unknown."""
    if gpu.free_mib is None:
        return 1
    return max(0, gpu.free_mib - RESERVE_MIB) // (CONTEXT_MIB + need_mib)


def _share_gpu(gpu: GpuFacts, sharing: int, threads: int) -> WorkerResources:
    if sharing == 1 or gpu.free_mib is None:
        return WorkerResources(gpu.name, threads)
    limit = (gpu.free_mib - RESERVE_MIB) // sharing - CONTEXT_MIB
    return WorkerResources(gpu.name, threads, max(1, limit), gpu.total_mib)


def _explain_little(facts: WorkerFacts) -> str:
    free: Sequence[str] = [
        f"{gpu.name} has {gpu.free_mib:,} MiB free"
        for gpu in facts.gpus
        if gpu.free_mib is not None
    ]
    need = f"a worker needs about {CONTEXT_MIB + facts.need_mib:,} MiB"
    return f"{need}, and {', '.join(free) or 'the free memory is not known'}"


def _count(workers: int) -> str:
    return f"{workers} worker processes"


def _as_mib(value: float | None) -> int | None:
    return None if value is None else int(value // MIB)
