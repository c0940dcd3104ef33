import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import SpecError
from gpukeras.distributed.addresses import FREE_PORTS
from gpukeras.distributed.slurm import (
    JOB_PORTS,
    choose_port,
    parse_counts,
    parse_nodes,
    parse_slurm,
)

STEP = {
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
}
JOB = {
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "0",
    "SLURM_JOB_ID": "42",
}
PORT = choose_port(42)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("gpu1", ["gpu1"]),
        ("node[01-03,07],gpu1", ["node01", "node02", "node03", "node07", "gpu1"]),
        ("a[1-2]-ib", ["a1-ib", "a2-ib"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        (
            "n[8-11].cluster.org, b",
            ["n8.cluster.org", "n9.cluster.org"] + ["n10.cluster.org", "n11.cluster.org", "b"],
        ),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_lists_of_computers(text, names):
    assert parse_nodes(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n1-3]", "n[3-1]", "n[]", "n[a-b]", "n[1-2-3]", "a[[1]]"])
def test_a_list_that_cannot_be_read_is_named(text):
    with pytest.raises(SpecError, match="Slurm's list of computers has .*, which cannot be read"):
        parse_nodes(text)


def test_a_damaged_list_does_not_fill_memory():
    with pytest.raises(SpecError, match="list of computers has more than 100000 names"):
        parse_nodes("n[0-99998][0-99998]")
    with pytest.raises(SpecError, match="cannot be read"):
        parse_nodes("n[0-999999999]")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1200), min_size=1, max_size=30), st.integers(1, 4))
def test_any_numbers_come_back(numbers, width):
    written = [f"{number:0{width}d}" for number in numbers]
    assert parse_nodes(f"n[{','.join(written)}],x") == [*(f"n{text}" for text in written), "x"]


@pytest.mark.parametrize(
    ("text", "counts"), [("", []), ("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x1), 3", [1, 2, 3])]
)
def test_numbers_of_tasks(text, counts):
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["2(x)", "x", "2x3", "2(3)", "-1"])
def test_numbers_of_tasks_that_cannot_be_read(text):
    with pytest.raises(SpecError, match="numbers of tasks"):
        parse_counts(text)


def test_each_task_finds_the_same_workers_and_its_own_place():
    places = [("0", "0"), ("0", "1"), ("1", "0")]
    found = [
        parse_slurm(STEP | {"SLURM_PROCID": str(i), "SLURM_NODEID": node, "SLURM_LOCALID": local})
        for i, (node, local) in enumerate(places)
    ]
    workers = [f"n1:{PORT}", f"n1:{PORT + 1}", f"n2:{PORT}"]
    assert found == [(workers, 0), (workers, 1), (workers, 2)]


def test_tasks_in_turn():
    cyclic = STEP | {"SLURM_DISTRIBUTION": "cyclic", "SLURM_PROCID": "1", "SLURM_NODEID": "1"}
    assert parse_slurm(cyclic) == ([f"n1:{PORT}", f"n2:{PORT}", f"n1:{PORT + 1}"], 1)


def test_the_step_counts_and_not_its_larger_job():
    job = {"SLURM_JOB_NODELIST": "n[1-9]", "SLURM_NTASKS": "9", "SLURM_TASKS_PER_NODE": "1(x9)"}
    assert parse_slurm(STEP | job) == parse_slurm(STEP)


def test_the_job_counts_where_the_step_is_not_told():
    job = JOB | {"SLURM_PROCID": "1", "SLURM_STEPID": "0"}
    assert parse_slurm(job) == ([f"n1:{PORT}", f"n2:{PORT}"], 1)


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_STEP_NODELIST"])
def test_what_is_no_task_of_slurms_is_none(missing):
    assert parse_slurm({name: value for name, value in STEP.items() if name != missing}) is None


def test_the_batch_script_itself_is_no_worker():
    with pytest.raises(SpecError, match="batch script of a Slurm job, not one of its 2 tasks") as e:
        parse_slurm(JOB)
    assert "srun Rscript train.R" in e.value.hint
    alone = JOB | {"SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}
    assert parse_slurm(alone) == ([f"n1:{PORT}"], 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, "contradict each other: 2 computers, tasks on 2"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3"}, "contradict each other"),
        ({"SLURM_PROCID": "3"}, "this is task 3, counted from 0"),
        ({"SLURM_PROCID": "first"}, 'SLURM_PROCID must be a whole number, not "first"'),
        ({"SLURM_LOCALID": "1"}, "an order that is not known here"),
    ],
)
def test_variables_that_contradict_each_other(changes, words):
    with pytest.raises(SpecError, match=words):
        parse_slurm(STEP | changes)


@settings(max_examples=60)
@given(st.integers(0, 10**8), st.integers(0, 5))
def test_jobs_that_may_share_a_computer_share_no_port(job, step):
    first = choose_port(job, step)
    assert first in FREE_PORTS
    assert first + JOB_PORTS - 1 in FREE_PORTS
    assert all(abs(choose_port(job + k, step) - first) >= JOB_PORTS for k in range(1, 1000, 37))


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 19, "-1", "1e3", "٣", "²"])
def test_a_number_that_is_none_is_named(text):
    with pytest.raises(SpecError, match="SLURM_PROCID must be a whole number") as caught:
        parse_slurm(STEP | {"SLURM_PROCID": text})
    assert len(caught.value.message) < 100
