import json
import socket

import pytest
from children import run_python

from gpukeras.__main__ import main

pytestmark = pytest.mark.tf


def run_core(*arguments):
    return run_python("-m", "gpukeras", *arguments, CUDA_VISIBLE_DEVICES="-1")


def test_check_says_the_verdict_and_exits_with_1_where_it_is_not_confirmed():
    child = run_core("check")
    assert child.returncode == 1
    assert child.stdout.startswith("GPU: NOT USED\nCause: ")


def test_check_gives_json():
    child = run_core("check", "--json")
    assert child.returncode == 1
    found = json.loads(child.stdout)
    assert found["verdict"] == "NOT USED"
    assert {"cause", "cause_id", "fix", "evidence", "findings", "facts"} <= found.keys()


def test_devices_are_listed(capsys):
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "CPU:0"
    assert main(["devices"]) == 0
    assert capsys.readouterr().out.startswith("CPU:0")


def test_the_report_names_no_host():
    child = run_core("report")
    assert child.returncode == 0
    assert "Facts\n" in child.stdout
    assert socket.gethostname() not in child.stdout.split()


def test_an_unknown_command_is_a_usage_error():
    assert run_core("chekc").returncode == 2
