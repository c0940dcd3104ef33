"""Several processes train as one: the same weights everywhere, and what goes wrong is told to all.

Each cluster makes many cases one after another, as starting TensorFlow takes long.
"""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from children import run_script
from clusters import plan_workers, run_all
from nightly import read_runs
from worker_child import run_case

pytestmark = pytest.mark.tf
NEAR = 1e-5
BATCH_NORM = ["train", {"batch_norm": True}]
DIFFERENCES = {
    "model": "variable 3 of the model is sequential/dense/kernel (8, 4) float32, and the chief's "
    "is sequential/dense/kernel (8, 3) float32",
    "ema": "`ema` is 0.9, and the chief's is none",
}
TABLE_ROWS = 1050


def cases_of(folder):
    """By the tests that need them, in an order in which nothing refused disturbs what follows."""
    differ = {what: ["differ", {"what": what}] for what in DIFFERENCES}
    return {
        "each run": {
            "model": differ.pop("model"),
            "dense": ["train", {"evaluate": True}],
            "resume": ["resume", {"folder": folder}],
        },
        "slow": {
            **differ,
            "interrupt": ["interrupt", {"worker": 1}],
            "stop": ["stop", {"worker": 1}],
            "shorter": ["stream", {"rows": [100, 70]}],
            "longer": ["stream", {"rows": [96, 100]}],
            "devices": ["refuse", {"devices": 2}],
            "stream": ["stream", {"rows": [100, 100]}],
            "shards": ["shards", {"path": f"{folder}/rows.parquet"}],
        },
        "nightly": {
            "batch_norm": BATCH_NORM,
            "keras": ["train", {"engine": "keras"}],
            "few rows": ["train", {"rows": 281}],  # of the last batch one row is left
            "embedding": "embedding",
        },
        "last": {"fail": ["fail", {"worker": 1}], "after": BATCH_NORM, "rejoin": "rejoin"},
    }


SLOW = pytest.mark.slow
ALIKE = [
    *("dense", "resume", pytest.param("stream", marks=SLOW)),
    *(pytest.param(name, marks=pytest.mark.nightly) for name in cases_of("")["nightly"]),
]
PORT_LOST = """
import socket
from gpukeras.distributed import addresses
from gpukeras.distributed import session
from gpukeras.core.errors import ClusterError

other, (port,) = socket.socket(), addresses.find_ports(1)

def look_too_early(port):
    other.bind(("", port))
    other.listen()
    return False

session.read_is_taken = look_too_early
try:
    session.join_cluster({"workers": [f"127.0.0.1:{port}"], "index": 1})
except ClusterError as error:
    answer = [port, error.message]
"""


def write_tables(folder):
    """A file for workers that share it, and one from which they learn its encoding."""
    numbers = np.arange(TABLE_ROWS, dtype=float)
    kinds = pa.array(np.where(numbers % 7 < 3, "few", "more")).dictionary_encode()
    table = pa.table({"a": numbers, "b": numbers % 7, "y": kinds})
    pq.write_table(table, folder / "rows.parquet", row_group_size=100)
    pq.write_table(table.slice(0, 200), folder / "first.parquet")


@pytest.fixture(scope="module")
def two(request):
    """What each case found on two workers, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder))
        runs = {*read_runs(request), "last"}
        names = {
            name: case
            for run, cases in cases_of(folder).items()
            if run in runs
            for name, case in cases.items()
        }
        workers = run_all(plan_workers(2, list(names.values())))
        pairs = zip(*(worker.cases() for worker in workers), strict=True)
        return dict(zip(names, pairs, strict=True))


@pytest.fixture(scope="module")
def one():
    """What one process found, this one, by the name of the case."""
    with tempfile.TemporaryDirectory() as folder:
        named = {name: case for cases in cases_of(folder).values() for name, case in cases.items()}
        yield functools.cache(lambda name: run_case(named[name])[1])


def assert_near(found, expected):
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=0, atol=NEAR)
    assert found["history"].keys() == expected["history"].keys()
    for name, values in expected["history"].items():
        np.testing.assert_allclose(found["history"][name], values, rtol=0, atol=NEAR)


@pytest.mark.parametrize("case", ALIKE)
def test_two_processes_train_as_one(one, two, case):
    for found in two[case]:
        assert_near(found, one(case))
        assert (found["replicas"], found["workers"], found["part"]) == (2, 2, 16)
        assert found["classes"] == ["Variable"]
    assert (one(case)["replicas"], one(case)["workers"], one(case)["part"]) == (1, 1, 32)


@SLOW
def test_each_worker_reads_its_own_part_of_a_file(two):
    chief, other = two["shards"]
    assert chief["share"] == "worker 1 of 2 reads row groups 1 to 5 of 11, 500 rows"
    assert other["share"].startswith("worker 2 of 2 reads row groups 6 to 11 of 11, 550 rows; ")
    assert (len(chief["keys"]), len(other["keys"])) == (500, 550)
    assert len({*chief["keys"], *other["keys"]}) == TABLE_ROWS
    assert chief["history"]["loss"][-1] < chief["history"]["loss"][0]


@pytest.mark.parametrize(
    "case", [*ALIKE, *(pytest.param(name, marks=SLOW) for name in ("shards", "interrupt", "stop"))]
)
def test_all_workers_end_with_the_same_weights_to_the_last_bit(two, case):
    chief, other = two[case]
    assert chief["hash"] == other["hash"]
    assert chief["history"] == other["history"]


@pytest.mark.nightly
def test_four_processes_train_as_one(one):
    workers = run_all(plan_workers(4, [BATCH_NORM]))
    found = [worker.cases()[0] for worker in workers]
    assert len({each["hash"] for each in found}) == 1
    assert_near(found[0], one("batch_norm"))
    assert [(each["replicas"], each["part"]) for each in found] == [(4, 8)] * 4


def test_workers_evaluate_and_predict_as_one(one, two):
    for found in two["dense"]:
        expected = one("dense")
        assert found["evaluated"]["rows"] == expected["evaluated"]["rows"] == 335
        for name, value in expected["evaluated"]["metrics"].items():
            assert found["evaluated"]["metrics"][name] == pytest.approx(value, abs=NEAR)
        np.testing.assert_allclose(found["predicted"], expected["predicted"], atol=NEAR)


def test_only_the_chief_writes_and_all_go_on_from_its_checkpoint(two):
    chief, other = two["resume"]
    assert chief["written"] == ["board", "checkpoint"]
    assert other["written"] == []
    assert (other["checkpoint"], other["tensorboard"]) == ("", "")
    assert [found["resumed"] for found in (chief, other)] == [1, 1]
    assert [found["epochs"] for found in (chief, other)] == [3, 3]


@SLOW
@pytest.mark.parametrize(
    ("case", "stopped", "epochs"), [("interrupt", "interrupted", 2), ("stop", "early", 3)]
)
def test_one_worker_ends_the_training_of_all(two, case, stopped, epochs):
    assert [found["epochs"] for found in two[case]] == [epochs] * 2
    assert [found["stopped"] for found in two[case]] == [stopped] * 2


@pytest.mark.varies
@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_worker_that_differs_is_refused_on_all_with_the_difference(two, what):
    for found in two[what]:
        assert (found["error"], found["worker"]) == ("ClusterError", 2)
        assert found["message"].startswith("Worker 2 (127.0.0.1:")
        assert found["message"].endswith(f" is not like the chief: {DIFFERENCES[what]}.")


@SLOW
@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("shorter", "has 2 batches of 32 rows next, the chief 3 batches of 32 rows"),
        ("longer", "has 1 batch of 4 rows next, the chief no more rows"),
    ],
)
def test_streams_of_unequal_length_are_named_on_all(two, case, told):
    for found in two[case]:
        assert (found["error"], found["worker"]) == ("ClusterError", 2)
        assert told in found["message"]


@SLOW
def test_a_worker_cannot_choose_devices(two):
    for found in two["devices"]:
        assert found["error"] == "SpecError"
        assert "every worker trains on all of its visible GPUs" in found["message"]


def test_a_workers_own_error_is_its_own_and_named_on_the_other(two):
    chief, failed = two["fail"]
    assert (failed["error"], failed["message"]) == ("ValueError", "a callback's own")
    assert (chief["error"], chief["worker"]) == ("ClusterError", 2)
    assert chief["message"].startswith("Worker 2 (127.0.0.1:")
    assert chief["message"].endswith(" has failed: ValueError: a callback's own.")


def test_no_training_begins_in_a_cluster_that_has_lost_a_worker(two):
    chief, failed = two["after"]
    assert (chief["error"], failed["error"]) == ("ClusterError", "ClusterError")
    assert chief["message"] == two["fail"][0]["message"]


def test_a_worker_does_not_change_its_cluster(two):
    for found in two["rejoin"]:
        assert found["error"] == "ClusterError"
        assert found["message"] == "This process is a worker of another cluster already."


@pytest.mark.slow
def test_a_port_that_is_taken_just_before_tensorflow_starts_is_told():
    port, message = run_script(PORT_LOST, CUDA_VISIBLE_DEVICES="-1")
    assert message.startswith(f"TensorFlow cannot start a worker at 127.0.0.1:{port}: Could not")
