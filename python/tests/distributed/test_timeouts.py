"""Time-outs that are learned from observations, and the file that keeps these."""

import json
import math

import pytest

from gpukeras.distributed.timeouts import (
    CALL,
    CALL_FLOOR_S,
    FILE,
    JOIN,
    JOIN_FLOOR_S,
    JOIN_S,
    MOST,
    ClusterTimes,
    cluster_key,
    learn_timeout,
    open_times,
    read_times,
)

WORKERS = ("10.0.0.5:2222", "10.0.0.6:2222")


@pytest.mark.parametrize(
    ("what", "observed", "seconds"),
    [
        (JOIN, [], JOIN_S),
        (JOIN, [1.0, 2.0], JOIN_S),  # too few
        (JOIN, [1.0, 2.0, 3.0], JOIN_FLOOR_S),
        (JOIN, [1.0, 200.0, 3.0], 1000.0),  # a batch system that starts workers minutes apart
        (CALL, [1.0, 2.0], math.inf),
        (CALL, [1.0, 2.0, 5.0], CALL_FLOOR_S),
        (CALL, [1.0, 900.0, 5.0], 4500.0),
    ],
)
def test_a_timeout_is_five_times_the_longest_but_not_below_its_floor(what, observed, seconds):
    assert learn_timeout(what, observed).seconds == seconds


def test_a_timeout_says_where_it_comes_from():
    assert learn_timeout(JOIN, []).reason == "fewer than 3 observations on this cluster"
    text = "5 times the longest of 3 observations on this cluster (20 s), at least 60 s"
    assert learn_timeout(JOIN, [1.0, 20.0, 2.0]).reason == text


def test_a_cluster_is_known_by_its_hosts():
    assert cluster_key(WORKERS) == cluster_key(["10.0.0.5:1", "10.0.0.6:2"])
    assert cluster_key(WORKERS) != cluster_key(WORKERS[:1])
    assert cluster_key(WORKERS) != cluster_key(["10.0.0.5:1", "10.0.0.7:2"])


def test_observations_last_and_the_latest_are_kept(tmp_path):
    for number in range(MOST + 3):
        ClusterTimes(WORKERS, tmp_path / "deep").add(JOIN, float(number))
    ClusterTimes(("127.0.0.1:1",), tmp_path / "deep").add(CALL, 7.0)
    times = read_times(tmp_path / "deep" / FILE)
    assert times[cluster_key(WORKERS)] == {JOIN: [float(n) for n in range(3, MOST + 3)]}
    assert times[cluster_key(["127.0.0.1:9"])] == {CALL: [7.0]}
    assert ClusterTimes(WORKERS, tmp_path / "deep").timeout(JOIN).seconds == 5 * (MOST + 2)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == [FILE]


def test_without_a_folder_they_last_as_long_as_the_process():
    times = ClusterTimes(WORKERS, None)
    for _ in range(3):
        times.add(JOIN, 100.0)
    assert times.timeout(JOIN).seconds == 500


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[1]", '{"a": 3}', '{"a": {"join": "x"}}', '{"a": {"join": [-1]}}',
        '{"a": {"join": [Infinity]}}', '{"a": {"join": [1e300]}}',
        '{"a": {"join": [%s]}}' % ("9" * 400), '{"a": {"join": [true]}}', "[" * 100_000,
        json.dumps({"a": {"join": [1.0] * (MOST + 1)}}),
    ],
)  # fmt: skip
def test_a_damaged_file_tells_nothing(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert read_times(tmp_path / FILE) == {}


def test_the_folder_can_be_named_or_switched_off(tmp_path):
    named = {"GPUKERAS_CLUSTER_CACHE": str(tmp_path / "mine")}
    open_times(WORKERS, named).add(JOIN, 1.0)
    assert (tmp_path / "mine" / FILE).exists()
    open_times(WORKERS, {"GPUKERAS_CLUSTER_CACHE": "off"}).add(JOIN, 1.0)
    (tmp_path / "mine").chmod(0o777)  # anyone could write there
    assert open_times(WORKERS, named).timeout(JOIN).seconds == JOIN_S
