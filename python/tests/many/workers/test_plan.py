"""Workers are planned from facts: one on each GPU, several on a card as memory allows."""

from dataclasses import replace

import pytest

from gpukeras.many.workers.plan import (
    CONTEXT_MIB,
    RESERVE_MIB,
    GpuFacts,
    WorkerFacts,
    WorkerResources,
    plan_workers,
    read_worker_facts,
)

CARD = GpuFacts("GPU:0", 20_000, 24_000)
SECOND = GpuFacts("GPU:1", 10_000, 24_000)
UNKNOWN = GpuFacts("GPU:0", None, None)
CPU = WorkerFacts("auto", 12, "CPU:0", (), cores=8)
ONE = WorkerFacts("auto", 12, "GPU:0", (CARD,), cores=8, need_mib=1_000)
TWO = replace(ONE, gpus=(CARD, SECOND))


@pytest.mark.parametrize(
    ("facts", "changes", "devices", "reason"),
    [
        (CPU, {}, [], "on a CPU workers are started where `workers` asks for them"),
        (CPU, {"asked": 2}, ["cpu"] * 2, "2 worker processes with 4 threads each"),
        (CPU, {"asked": 12}, ["cpu"] * 12, "12 worker processes with 1 thread each"),
        (CPU, {"asked": 5, "jobs": 3}, ["cpu"] * 3, "3 worker processes with 2 threads each"),
        (CPU, {"asked": 1}, [], ""),
        (CPU, {"asked": 2, "jobs": 1}, [], "there is one model to train"),
        (ONE, {}, [], "one GPU trains one model at a time"),
        (ONE, {"asked": 3}, ["GPU:0"] * 3, "3 worker processes on 1 GPU"),
        (
            ONE,
            {"device": "CPU:0"},
            [],
            "on a CPU workers are started where `workers` asks for them",
        ),
        (
            ONE,
            {"asked": 12, "need_mib": 9_000},
            [],
            "a worker needs about 9,768 MiB, and GPU:0 has 20,000 MiB free",
        ),
        (
            ONE,
            {"asked": 12, "need_mib": 5_000},
            ["GPU:0"] * 3,
            "3 worker processes on 1 GPU: the free memory suffices for no more than 3",
        ),
        (
            ONE,
            {"asked": 2, "gpus": (UNKNOWN,)},
            [],
            "a worker needs about 1,768 MiB, and the free memory is not known",
        ),
        (TWO, {}, ["GPU:0", "GPU:1"], "2 worker processes on 2 GPUs"),
        (TWO, {"asked": 3}, ["GPU:0"] * 2 + ["GPU:1"], "3 worker processes on 2 GPUs"),
        (
            TWO,
            {"asked": 4, "need_mib": 9_000},
            [],
            "a worker needs about 9,768 MiB, and GPU:0 has 20,000 MiB free, GPU:1 has 10,000 MiB "
            "free",
        ),
    ],
)
def test_facts_decide(facts, changes, devices, reason):
    plan = plan_workers(replace(facts, **changes))
    assert [resources.device for resources in plan.workers] == devices
    assert plan.reason == reason


def test_workers_of_a_card_share_its_free_memory():
    shared = plan_workers(replace(TWO, asked=5)).workers
    first, second = shared[:3], shared[3:]
    limit = (20_000 - RESERVE_MIB) // 3 - CONTEXT_MIB
    assert set(first) == {WorkerResources("GPU:0", 1, limit, 24_000)}
    assert sum(resources.memory_mib + CONTEXT_MIB for resources in first) + RESERVE_MIB <= 20_000
    assert {resources.device for resources in second} == {"GPU:1"}
    assert all(resources.memory_mib >= TWO.need_mib for resources in shared)


def test_a_worker_that_has_a_card_for_itself_has_no_limit():
    assert {resources.memory_mib for resources in plan_workers(TWO).workers} == {None}


@pytest.mark.tf
def test_facts_are_those_of_this_process():
    facts = read_worker_facts(2, 7, 3 * 2**20)
    assert (facts.asked, facts.jobs, facts.need_mib) == (2, 7, 3)
    assert facts.cores > 0
