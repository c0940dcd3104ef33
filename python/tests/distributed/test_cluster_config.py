import dataclasses
import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import SpecError
from gpukeras.distributed import addresses
from gpukeras.distributed.addresses import (
    Address,
    find_ports,
    parse_address,
    read_is_free,
    read_is_here,
)
from gpukeras.distributed.cluster_config import ClusterSpec, parse_tf_config, read_cluster

KNOWN = {"GPUKERAS_SECRET": "what the workers share"}
TWO = {"workers": ["a:2222", "b:2223"], "index": 2.0}
SLURM = {
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "42",
}


def tf_config(task="worker", index=1, **jobs):
    jobs = jobs or {"worker": ["c:1", "d:2"]}
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": task, "index": index}})}


# Addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port", "written", "loopback"),
    [
        ("Node1:2222", "node1", 2222, "node1:2222", False),
        ("localhost:1", "localhost", 1, "localhost:1", True),
        ("127.1.2.3:65535", "127.1.2.3", 65535, "127.1.2.3:65535", True),
        ("10.0.0.5:80", "10.0.0.5", 80, "10.0.0.5:80", False),
        ("[::1]:2222", "::1", 2222, "[::1]:2222", True),
        ("[FD00:0::5]:2222", "fd00::5", 2222, "[fd00::5]:2222", False),
        ("gpu-1.my_lab.org:22", "gpu-1.my_lab.org", 22, "gpu-1.my_lab.org:22", False),
    ],
)
def test_addresses_in_their_parts(text, host, port, written, loopback):
    address = parse_address(text)
    assert (address.host, address.port, str(address)) == (host, port, written)
    assert address.is_loopback is loopback
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", 'must be addresses "host:port", not "a"'),
        ("::1:2222", 'must be addresses "host:port"'),
        ("http://a:80", 'must be addresses "host:port"'),
        (None, "not NULL"),
        (3, "not 3"),
        (["a:1"], "not a list"),
        ("a:0", "port 0"),
        ("a:65536", "port 65536"),
        ("0.0.0.0:2222", "all addresses of a computer"),
        ("[::]:2222", "all addresses of a computer"),
        ("1.2.3:4", "neither a host's name nor an IP address"),
        ("1.2.3.400:4", "neither a host's name nor an IP address"),
        ("[a]:1", "neither a host's name"),
        ("[10.0.0.1]:1", "neither a host's name"),
        ("[fe80::1%eth0]:1", "neither a host's name"),
        ("-a:1", "neither a host's name"),
        ("a b:1", "neither a host's name"),
        (":1", "neither a host's name"),
    ],
)
def test_what_is_no_address_is_refused(text, words):
    with pytest.raises(SpecError, match=words) as caught:
        parse_address(text)
    assert caught.value.details == {"arg": "workers"}


def test_own_addresses_are_told_from_others():
    assert read_is_here("localhost")
    assert read_is_here("127.0.0.1")
    assert read_is_here(socket.gethostname().lower())
    assert not read_is_here("240.0.0.1")  # of no computer, by RFC 1112
    assert not read_is_here("no-such-host.invalid")


def test_ports_that_are_found_are_free_and_different():
    ports = find_ports(20)
    assert len(set(ports)) == 20
    assert set(ports) <= set(addresses.FREE_PORTS)
    with socket.socket() as server:
        server.bind(("127.0.0.1", ports[0]))
        server.listen()
        assert not read_is_free(Address("127.0.0.1", ports[0]))
    assert read_is_free(Address("127.0.0.1", ports[0]))


def test_too_few_free_ports_are_counted(monkeypatch):
    port = find_ports(1)[0]
    monkeypatch.setattr(addresses, "FREE_PORTS", range(port, port + 1))
    with pytest.raises(SpecError, match="3 free ports are needed, found 1"):
        find_ports(3)


# The record ---------------------------------------------------------------------------------------


def test_what_a_cluster_tells():
    spec = ClusterSpec(("A:2222", "b:2223"), 1)
    assert (spec.workers, spec.size) == (("a:2222", "b:2223"), 2)
    assert spec.own == "b:2223"
    assert (spec.control, spec.timeout_s, spec.source) == ("a:2223", 60.0, "as given")
    assert not spec.loopback
    assert ClusterSpec(("127.0.0.1:1", "localhost:2", "[::1]:3")).loopback
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.index = 0


@pytest.mark.tf
def test_tensorflow_is_told_in_its_own_words(monkeypatch):
    from gpukeras.backend import runtime

    spec = ClusterSpec(("a:1", "[::1:2]:3"), 1)
    text = json.dumps(spec.tf_config())
    assert parse_tf_config(text) == (spec.workers, 1, "TF_CONFIG")
    monkeypatch.setenv("TF_CONFIG", text)
    resolver = runtime.tensorflow().distribute.cluster_resolver.TFConfigClusterResolver()
    assert resolver.cluster_spec().as_dict() == {"worker": list(spec.workers)}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


@pytest.mark.parametrize(
    ("workers", "control"),
    [
        (("a:5", "a:9", "b:100"), "a:10"),
        (("a:65535", "a:65534", "a:7"), "a:65533"),
        (("a:65534",), "a:65535"),
        (("[::1]:5",), "[::1]:6"),
    ],
)
def test_the_control_channel_has_a_port_beside_the_chiefs(workers, control):
    assert ClusterSpec(workers).control == control


@settings(max_examples=50)
@given(st.sets(st.integers(1, 65535), min_size=1, max_size=50))
def test_the_control_channel_takes_no_workers_port(ports):
    spec = ClusterSpec(tuple(f"a:{port}" for port in ports))
    assert spec.control not in spec.workers
    assert ClusterSpec(spec.workers, 0, spec.control) == spec


@pytest.mark.parametrize(
    ("fields", "words", "arg"),
    [
        ({"workers": ()}, "at least one address", "workers"),
        ({"workers": ("a:1", "b:1", "A:1")}, "a:1 twice, as 1 and 3", "workers"),
        ({"workers": ("a:1", "127.0.0.1:1")}, "no other computer can reach", "workers"),
        ({"control": "127.0.0.1:9"}, "no other computer can reach", "workers"),
        ({"control": "a:1"}, "control channel has the address a:1", "control"),
        ({"control": "nine"}, "`control` must be addresses", "control"),
        ({"timeout_s": 0.5}, "`timeout` must be a number of at least 1", "timeout"),
        ({"timeout_s": float("inf")}, "`timeout` must be a number", "timeout"),
        ({"index": 2}, "`index` must be a whole number from 0 to 1", "index"),
        ({"workers": ("a",), "source": "TF_CONFIG"}, "`TF_CONFIG` must be addr", "TF_CONFIG"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(fields, words, arg):
    with pytest.raises(SpecError, match=words) as caught:
        ClusterSpec(**{"workers": ("a:1", "b:1"), **fields})
    assert caught.value.details["arg"] == arg


# Where it comes from ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "environment", "own", "source"),
    [
        (TWO, {**tf_config(), **SLURM}, "b:2223", "as given"),
        ({"workers": None, "index": None}, {**tf_config(), **SLURM}, "d:2", "TF_CONFIG"),
        (None, {"TF_CONFIG": "", **SLURM}, "n2:12840", "SLURM"),
        ([], {"TF_CONFIG": "{}", **SLURM}, "n2:12840", "SLURM"),
        ({}, {"TF_CONFIG": '{"cluster": {}}', **SLURM}, "n2:12840", "SLURM"),
        ({"workers": "a:1", "index": 1}, {}, "a:1", "as given"),
        ({}, tf_config("chief", 0, chief=["e:1"], worker=["f:1"]), "e:1", "TF_CONFIG"),
        ({}, tf_config("worker", 0, chief=["e:1"], worker=["f:1"]), "f:1", "TF_CONFIG"),
        ({}, tf_config(worker=["c:1", "d:2"], ps=[], evaluator=[]), "d:2", "TF_CONFIG"),
    ],
)
def test_what_is_given_wins_over_tf_config_and_that_over_slurm(options, environment, own, source):
    spec = read_cluster(options, environment | KNOWN)
    assert (spec.own, spec.source) == (own, source)


def test_the_chief_comes_first():
    spec = read_cluster({}, KNOWN | tf_config("worker", 1, chief=["e:1"], worker=["f:1", "g:1"]))
    assert (spec.workers, spec.index) == (("e:1", "f:1", "g:1"), 2)


def test_options_and_the_environment_give_the_control_channel():
    control = {"GPUKERAS_CONTROL": "a:9"}
    assert read_cluster(TWO, control | KNOWN).control == "a:9"
    assert read_cluster(TWO | {"control": "a:8"}, control | KNOWN).control == "a:8"
    assert read_cluster(TWO | {"timeout_s": 5}, KNOWN).timeout_s == 5.0
    assert read_cluster({"timeout_s": 5, "control": "c:8"}, tf_config() | KNOWN).control == "c:8"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Nothing says who the workers are.*TF_CONFIG.*srun.*gpu_launch"),
        ({"workers": 2, "index": 1}, "not a number. To start workers on this computer use gpu_lau"),
        ({"workers": ["a:1", "b:1"]}, "`index` must say which of the 2 workers this process is"),
        ({"index": 1}, "`index` needs `workers`"),
        (TWO | {"index": 0}, "`index` must be a whole number from 1 to 2, not 0"),
        (TWO | {"index": 3}, "`index` must be a whole number from 1 to 2, not 3"),
        (TWO | {"timeout": 3}, "Unknown option `timeout`"),
    ],
)
def test_options_that_do_not_say_who_is_who(options, words):
    with pytest.raises(SpecError, match=words):
        read_cluster(options, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG is not JSON"),
        ("[1]", "must have `cluster` and `task`"),
        ('{"cluster": {"worker": ["a:1"]}}', "must have `cluster` and `task`"),
        ('{"cluster": ["a:1"], "task": {}}', "must have `cluster` and `task`"),
        (tf_config(worker=["a:1"], ps=["b:1"])["TF_CONFIG"], 'type "ps"; only workers train'),
        (tf_config("evaluator", 0)["TF_CONFIG"], 'type "evaluator"; only workers'),
        (tf_config(chief=["a:1", "b:1"])["TF_CONFIG"], "2 chiefs instead of one"),
        (tf_config("chief", 0)["TF_CONFIG"], 'no task of its own type "chief"'),
        (tf_config(index=2)["TF_CONFIG"], "TF_CONFIG` must be a whole number from 0 to 1, not 2"),
        (tf_config(index="0")["TF_CONFIG"], 'TF_CONFIG` must be a whole number.*"0"'),
        (tf_config(worker={"0": "a:1"})["TF_CONFIG"], "addresses of a kind of tasks as an array"),
        (tf_config(worker=["a:1", "a:1"])["TF_CONFIG"], "`TF_CONFIG` has a:1 twice"),
    ],
)
def test_a_tf_config_that_cannot_be_used_is_named(text, words):
    with pytest.raises(SpecError, match=words) as caught:
        read_cluster({}, {"TF_CONFIG": text, **SLURM})
    assert caught.value.details["arg"] == "TF_CONFIG"
