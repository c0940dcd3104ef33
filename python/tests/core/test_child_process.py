import functools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from children import PATIENCE_S

from gpukeras.core import child_process
from gpukeras.core.child_process import OUTPUT_LIMIT, explain_status, run_child

STARTED_S = 8  # in which a Python starts, on a busy computer too
HANG = "import time; print('begun', flush=True); time.sleep(600)"


def run(code, limit_s=PATIENCE_S):
    return run_child(sys.executable, ["-c", code], os.environ, limit_s)


def test_a_child_that_ends_well_has_no_problem():
    end = run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (end.stdout, end.stderr, end.problem) == ("out\n", "err\n", "")


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
    """How children end that do not end by themselves; they hang side by side, for `STARTED_S`."""
    pid = tmp_path_factory.mktemp("hanging") / "pid"
    codes = {
        "alone": HANG,
        "endless": f"import sys\nsys.stdout.write('x' * {2 * OUTPUT_LIMIT})\n{HANG}",
        "parent": f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {HANG!r}])
open({str(pid)!r}, "w").write(str(child.pid))
import time; time.sleep(600)
""",
    }
    with ThreadPoolExecutor(len(codes)) as pool:
        ends = pool.map(functools.partial(run, limit_s=STARTED_S), codes.values())
        return {**dict(zip(codes, ends, strict=True)), "pid": int(pid.read_text())}


def test_a_child_that_hangs_is_killed_and_what_it_said_is_kept(hanging):
    end = hanging["alone"]
    assert (end.problem, end.stdout) == ("did not end within 8 s", "begun\n")


def test_what_a_child_started_is_killed_with_it(hanging):
    deadline = time.monotonic() + PATIENCE_S
    while is_running(hanging["pid"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(hanging["pid"])


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_without_end_does_not_fill_memory(hanging):
    end = hanging["endless"]
    assert end.stdout == "x" * OUTPUT_LIMIT
    assert end.problem == "did not end within 8 s"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os; os.abort()", "killed by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("raise SystemExit(3)", "exit status 3"),
    ],
)
def test_how_a_child_ended_is_told(code, problem):
    assert run(code).problem == problem


def test_bytes_that_are_no_text_are_no_obstacle():
    end = run("import sys; sys.stdout.buffer.write(bytes(range(256)))")
    assert end.problem == ""
    assert "A" in end.stdout


def test_a_python_that_is_not_there_is_a_problem():
    problem = run_child("/no/python", [], {}, 5).problem
    assert problem.startswith("could not be started: FileNotFoundError")


def test_signals_without_a_name():
    assert explain_status(-99) == "killed by signal 99"
    assert explain_status(0) == ""


def test_a_child_finds_the_library_of_its_own_python_first(tmp_path, monkeypatch):
    known = {"LIBDIR": str(tmp_path), "INSTSONAME": "libpython3.so"}
    monkeypatch.setattr(child_process.sysconfig, "get_config_var", known.get)
    given = {"LD_LIBRARY_PATH": "/usr/lib/R/lib", "A": "b"}
    assert child_process.own_library_first(given) == given  # a Python without a library there
    (tmp_path / "libpython3.so").touch()
    expected = {**given, "LD_LIBRARY_PATH": f"{tmp_path}:/usr/lib/R/lib"}
    assert child_process.own_library_first(given) == expected
    assert child_process.own_library_first({"A": "b"}) == {"A": "b"}
