import os

import pytest

from gpukeras.system import host
from gpukeras.system.host import NvmlGpu

A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"


@pytest.mark.parametrize(
    ("name", "content", "marker"),
    [
        (".dockerenv", "", "/.dockerenv"),
        ("run/.containerenv", "", "/run/.containerenv"),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1", "control group kubepods"),
        ("proc/1/cgroup", "0::/init.scope", ""),
    ],
)
def test_containers_are_recognised(tmp_path, name, content, marker):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
    assert host.read_container(tmp_path, {})["marker"] == marker


def test_what_a_container_was_promised_is_read(tmp_path):
    promised = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute"}
    found = host.read_container(tmp_path, promised)
    assert found["nvidia_visible_devices"] == "all"
    assert found["nvidia_driver_capabilities"] == "compute"
    assert host.read_container(tmp_path, {})["nvidia_driver_capabilities"] == ""


def test_slurm_jobs_are_recognised():
    assert host.read_slurm({}) == {"job_id": "", "gpus": ""}
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}
    assert host.read_slurm(job) == {"job_id": "7", "gpus": "0,1"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are bound on Linux only")
def test_a_thread_for_each_core_that_the_process_may_use():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert host.count_workers() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert host.count_workers() == min(8, len(before))


@pytest.mark.parametrize(("limit", "cores"), [("1", 1), ("0", 1), ("1000000", None), ("x", None)])
def test_no_more_cores_are_used_than_openmp_may(monkeypatch, limit, cores):
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)
    own = host.count_cores()
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    assert host.count_cores() == (own if cores is None else cores)


@pytest.mark.parametrize(
    ("file", "values", "cores"),
    [
        ("cpu.max", "100000 100000", 1),
        ("cpu.max", "160000 100000", 2),
        ("cpu.max", "20000 100000", 1),
        ("cpu.max", "max 100000", 64),
        ("cpu.cfs_quota_us", "300000", 3),
        ("cpu.cfs_quota_us", "-1", 64),
    ],
)
def test_cores_are_no_more_than_the_time_that_a_control_group_has(
    tmp_path, monkeypatch, file, values, cores
):
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: range(64), raising=False)
    first = file == "cpu.cfs_quota_us"
    job = tmp_path / "sys/fs/cgroup" / ("cpu" if first else "") / "job"
    (job / "task").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    line = "3:cpu,cpuacct:/job/task" if first else "0::/job/task"
    (tmp_path / "proc/self/cgroup").write_text(f"2:cpuset:/\n{line}\n")
    (job / file).write_text(f"{values}\n")
    (job / "cpu.cfs_period_us").write_text("100000\n")
    assert host.count_cores(tmp_path) == cores


def test_the_limit_of_a_control_group_counts_without_file_cache(tmp_path):
    group = tmp_path / "sys/fs/cgroup/user.slice"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/user.slice\n")
    assert host.read_group_memory(tmp_path) is None
    (group / "memory.max").write_text("max\n")
    (group / "memory.stat").write_text("anon 300\nfile 900\n")
    assert host.read_group_memory(tmp_path) is None
    (group / "memory.max").write_text("1000\n")
    assert host.read_group_memory(tmp_path) == 700


def test_the_limits_of_the_groups_around_hold_too(tmp_path):
    job = tmp_path / "sys/fs/cgroup/slurmstepd.scope/job_7"
    task = job / "step_0/user/task_0"  # Slurm limits jobs and steps, and no task
    task.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "0::/slurmstepd.scope/job_7/step_0/user/task_0\n"
    (tmp_path / "proc/self/cgroup").write_text(text)
    for group, limit, used in ((task, "max", 100), (job / "step_0", 2000, 900), (job, 1500, 900)):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.stat").write_text(f"anon {used}\nfile 900\n")
    (tmp_path / "memory.max").write_text("1\n")  # no group
    (tmp_path / "memory.stat").write_text("anon 1\n")
    assert host.read_group_memory(tmp_path) == 600


def test_groups_of_version_1_have_limits_too(tmp_path):
    job = tmp_path / "sys/fs/cgroup/memory/slurm/uid_5/job_7"
    (job / "step_0").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "odd\n11:cpuset:/slurm/uid_5\n9:memory:/slurm/uid_5/job_7/step_0\n0::/\n"
    (tmp_path / "proc/self/cgroup").write_text(text)
    for group, limit in ((job / "step_0", 2**63 - 4096), (job, 1500)):
        (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (group / "memory.stat").write_text("cache 900\nrss 1\ntotal_rss 600\n")
    assert host.read_group_memory(tmp_path) == 900
    (job / "memory.limit_in_bytes").unlink()
    assert host.read_group_memory(tmp_path) is None


def test_this_computers_memory_is_plausible():
    total, free = host.read_total_memory(), host.read_free_memory()
    now, peak = host.read_process_memory()
    assert 2**20 < now <= peak < total
    assert 0 < free <= total


def test_memory_grows_with_what_is_held():
    before, _ = host.read_process_memory()
    block = bytearray(os.urandom(1) * 2**26)
    after, _ = host.read_process_memory()
    assert after - before > 0.9 * len(block)


def gpu(name, index):
    return NvmlGpu(name, f"GPU-{index}abc", float(index), 0.0)


@pytest.mark.parametrize(
    ("labels", "known", "visible", "matched"),
    [
        ([A100], [A100], None, [0]),
        ([A100, A100], [A100, A100], None, [0, 1]),
        ([A100, T4], [A100, T4], None, [0, 1]),
        ([A100, T4], [T4, A100], None, [1, 0]),  # CUDA: the fastest first
        ([T4], [A100, T4], "1", [1]),
        ([T4, A100], [A100, T4], "1,0", [1, 0]),
        ([A100], [A100, A100], "GPU-1", [1]),
        ([A100], [A100, A100], "MIG-5c", [None]),
        ([A100, T4, T4], [T4, T4, A100], None, [2, None, None]),
        (["NVIDIA A100 MIG 1g.5gb"], [A100], None, [None]),
        ([""], [A100], None, [None]),
    ],
)
def test_tensorflows_gpus_are_found_in_nvml_or_not_determined(labels, known, visible, matched):
    gpus = [gpu(name, index) for index, name in enumerate(known)]
    expected = [None if index is None else gpus[index] for index in matched]
    assert host.match_nvml(labels, gpus, visible) == expected


@pytest.mark.parametrize(
    ("labels", "known", "order", "matched"),
    [
        ([A100, T4, T4], [T4, T4, A100], [2, 0, 1], [2, 0, 1]),
        ([T4], [T4, T4, A100], [0], [0]),  # by CUDA_VISIBLE_DEVICES=1, CUDA's first T4
        ([A100, A100], [A100, T4, A100], [0, 2, 1], [0, 2]),  # a weak card is left out
        ([T4, A100], [T4, A100], [1, 0], [0, 1]),  # not CUDA's order: by their names
        (["NVIDIA A100 MIG 1g.5gb"], [A100, T4], ["GPU-slice"], [None]),
    ],
)
def test_cards_of_different_kinds_are_found_by_cudas_order(labels, known, order, matched):
    gpus = [gpu(name, index) for index, name in enumerate(known)]
    uuids = [place if isinstance(place, str) else gpus[place].uuid for place in order]
    expected = [None if index is None else gpus[index] for index in matched]
    assert host.match_nvml(labels, gpus, "1", uuids) == expected


def test_nvml_is_not_determined_without_a_driver():
    known = host.read_nvml()
    assert known is None or all(gpu.total_bytes > 0 for gpu in known)


def test_the_start_environment_and_the_library_cache_are_read():
    assert "PATH" in host.read_start_environment()
    assert any(name.startswith("libc.so") for name in host.read_library_cache())
