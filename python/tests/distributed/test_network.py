"""Two network namespaces as two hosts: they train across a link, and a cut link is told on both.

Also that TensorFlow answers on the address that it was given, and on no other.
"""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from clusters import plan_workers, run_all, started

pytestmark = pytest.mark.tf
TIMEOUT_S, MARGIN_S = 4.0, 20.0
NEAR = 1e-5
HOSTS = ("10.213.77.1", "10.213.77.2")
OTHER = "10.213.78.1"  # the first host's second address
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2.0).close()
    print("answers")
except OSError as error:
    print(type(error).__name__)
"""


def run_ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def inside(name):
    return ["ip", "netns", "exec", name]


@contextmanager
def two_hosts():
    """The names of two namespaces with a link between them, which are removed afterwards."""
    if shutil.which("ip") is None:
        pytest.skip("there is no program ip here, which makes network namespaces")
    names = [f"gpukeras-{os.getpid()}-{place}" for place in (1, 2)]
    links = [f"gk{os.getpid()}-{place}"[-15:] for place in (1, 2)]
    try:
        try:
            run_ip("netns", "add", names[0])
            run_ip("netns", "add", names[1])
            ends = "type", "veth", "peer", "name", links[1], "netns", names[1]
            run_ip("link", "add", links[0], "netns", names[0], *ends)
        except subprocess.CalledProcessError as error:
            told = error.stderr.decode().strip()
            pytest.skip(f"network namespaces may not be made here: {told}")
        for name, link, host in zip(names, links, HOSTS, strict=True):
            run_ip("-n", name, "addr", "add", f"{host}/24", "dev", link)
            run_ip("-n", name, "link", "set", link, "up")
            run_ip("-n", name, "link", "set", "lo", "up")
        run_ip("-n", names[0], "addr", "add", f"{OTHER}/24", "dev", "lo")
        run_ip("-n", names[1], "route", "add", f"{OTHER}/32", "via", HOSTS[0])
        yield names, links
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError, OSError):
                run_ip("netns", "del", name)


def plan(cases):
    addresses = [f"{host}:{place}" for host, place in zip(HOSTS, (23456, 23457), strict=True)]
    return plan_workers(2, cases, TIMEOUT_S, addresses)


def answers(host, address, port):
    """Whether a port of the first host is reached from a host."""
    command = [*inside(host), sys.executable, "-c", CONNECT, address, str(port)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return told.strip()


def listens(host):
    """What is listened on within a host: address and port of each socket."""
    command = [*inside(host), "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {int(port, 16) for port in re.findall(r"[0-9A-F]+:([0-9A-F]{4}) 0+:0000 0A", lines)}


@pytest.mark.nightly
def test_two_hosts_train_across_a_link_and_a_cut_is_told_on_both():
    training = ["train", {"batch_norm": True}]
    (alone,) = run_all([{"cases": [training]}])
    with two_hosts() as (names, links):
        plans = plan([training, ["long", {"folder": "", "epochs": 5000}]])
        with started(plans, [inside(name) for name in names]) as workers:
            for worker in workers:
                worker.wait_for("case")
            check_training([worker.cases()[0] for worker in workers], alone.cases()[0])
            for worker in workers:
                worker.wait_for("epoch", 2)
            check_listening(workers, names)
            run_ip("-n", names[0], "link", "set", links[0], "down")
            cut = [worker.told("epoch")[-1]["at"] for worker in workers]
            for worker in workers:
                worker.finish()
            check_cut(workers, cut)


def check_training(found, expected):
    assert found[0]["hash"] == found[1]["hash"]
    np.testing.assert_allclose(found[0]["weights"], expected["weights"], rtol=0, atol=NEAR)


def check_listening(workers, names):
    """TensorFlow's port answers on its own address only; nothing but what is told listens."""
    record = workers[0].told("joined")[0]["record"]
    port = int(record["address"].rpartition(":")[2])
    assert record["notes"] == []
    assert answers(names[1], HOSTS[0], port) == "answers"
    assert answers(names[0], HOSTS[0], port) == "answers"
    for host, address in ((names[0], "127.0.0.1"), (names[0], OTHER), (names[1], OTHER)):
        assert answers(host, address, port) != "answers", (host, address)
    assert [listens(name) for name in names] == [{23456}, {23457}]


def check_cut(workers, cut):
    for place, worker in enumerate(workers):
        told = worker.told("case")[1]
        found, other = told["found"], 2 - place
        assert (found["error"], found["worker"]) == ("ClusterError", other), worker.explain()
        assert f"orker {other} ({HOSTS[other - 1]}:" in found["message"]
        assert told["at"] - cut[place] < TIMEOUT_S + MARGIN_S
