"""The sentence with which `make test` ends, from real files of pytest."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "sum_up_tests.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the tests lie apart from the tools")
TESTS = """
import pytest

def test_passes(): pass

def test_fails(): assert False

@pytest.fixture
def broken(): raise OSError

def test_breaks(broken): pass

@pytest.mark.parametrize("n", range(2))
def test_skips(n): pytest.skip("not installed: onnx.")
"""


@pytest.fixture
def summary():
    spec = importlib.util.spec_from_file_location("sum_up_tests", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.process
def test_what_pytest_and_r_wrote_is_summed_up(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    xml = tmp_path / "python.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    subprocess.run([*command, "--junitxml", xml, tmp_path / "test_some.py"], capture_output=True)
    tsv = tmp_path / "r.tsv"
    tsv.write_text("passed\t\nskipped\tLeft to make test-all\npassed\t\n")
    done = subprocess.run([sys.executable, SCRIPT, xml, tsv], capture_output=True, text=True)
    assert done.stdout.startswith(
        "gpukeras test: 3 tests passed, 2 failed, 3 skipped (1 left to make test-all; "
        "2 because: not installed: onnx). `make test-all` goes "
    )


def test_no_file_is_told_and_counts_as_nothing(tmp_path, summary):
    assert summary.read_python(tmp_path / "none.xml") is None
    assert summary.read_r(tmp_path / "none.tsv") is None
    said = summary.sum_up(None, [("passed", "")])
    assert (
        said
        == "1 tests passed, none failed, 0 skipped. The tests of Python came to no end: see above."
    )


def test_what_is_left_to_other_targets_is_always_told_and_rare_reasons_are_counted(summary):
    found = [("skipped", why) for why in [*"aaabbccde", "Left to make test-nightly"]]
    said = summary.sum_up(found, [])
    assert (
        "10 skipped (1 left to make test-nightly; 3 because: a; 2 because: b; 2 because: c; "
        "2 for 2 other reasons)." in said
    )
