"""The groups of processes and the tables of bench_scale.py, without TensorFlow."""

import json
from itertools import groupby

import pytest
from scale_group import FREE, choose_addresses, run_group
from scale_tables import MODELS, REPLICAS, format_tables

TELLS = """
import json, os, sys
print("noise")
print(json.dumps([json.loads(os.environ.get("TF_CONFIG", "null")), sys.argv[1:]]))
"""
FAILS = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    sys.exit("this one fails")
time.sleep(3600)  # until it is ended
"""


@pytest.fixture
def write(tmp_path):
    def write(code):
        path = tmp_path / "program.py"
        path.write_text(code)
        return str(path)

    return write


def test_every_worker_knows_who_the_others_are(write):
    records = run_group(3, FREE, write(TELLS), "one", 2)
    clusters = [config["cluster"]["worker"] for config, _ in records]
    assert clusters == [clusters[0]] * 3
    assert len(set(clusters[0])) == 3
    assert [config["task"]["index"] for config, _ in records] == [0, 1, 2]
    assert [arguments for _, arguments in records] == [["one", "2"]] * 3


def test_one_worker_alone_is_in_no_cluster(write, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {}}))
    assert run_group(1, FREE, write(TELLS)) == [[None, []]]


def test_one_that_fails_ends_the_others_and_its_error_is_told(write):
    with pytest.raises(RuntimeError, match="this one fails") as caught:
        run_group(2, FREE, write(FAILS))
    assert "worker 2 ended with 1" in str(caught.value)


def test_ports_are_free_ones_of_the_hosts():
    found = choose_addresses(["127.0.0.1"] * 4)
    assert len(set(found)) == 4
    assert all(address.startswith("127.0.0.1:") for address in found)


def test_the_tables_are_whole():
    lines = [line for line in format_tables().splitlines() if line]
    tables = [list(group) for row, group in groupby(lines, lambda line: line[0] == "|") if row]
    assert [len(table) - 2 for table in tables] == [5 * len(MODELS), 2 * len(MODELS), len(MODELS)]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    assert tables[0][0].count("GPUs") == len(REPLICAS)
