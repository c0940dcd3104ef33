"""The check of programs for a card, in the environment that can compile them."""

import os
import subprocess
from pathlib import Path

import pytest
from children import CORE, PATIENCE_S
from compilers import PYTHON, needs_compiler

FOLDER = Path(__file__).parents[2] / "gpu_programs"
pytestmark = [pytest.mark.slow, pytest.mark.process, needs_compiler]
# As the loop was once: what a batch is cut from has the layout of the batch.
WITHOUT_MATRIX = f"""
import sys
sys.path.insert(0, "{FOLDER}")
import check_programs, jax
from gpukeras.engine import jax_engines

def cut(arrays, start, rows):
    slice_rows = jax.lax.dynamic_slice_in_dim
    return jax.tree.map(lambda array: slice_rows(array, start, rows), arrays)

jax_engines.cut = cut
sys.argv[1:] = ["--card", "RTX 3060", "--model", "conv1d", "--kind", "train"]
sys.exit(check_programs.main())
"""
# The program of any length, as if it were of a known one.
AS_IF_KNOWN = f"""
import sys
sys.path.insert(0, "{FOLDER}")
import check_programs
from dataclasses import replace

open_program = check_programs.open_program
check_programs.open_program = lambda *given: replace(open_program(*given), open_loops=0)
sys.argv[1:] = ["--card", "RTX 3060", "--model", "mlp", "--kind", "train_any"]
sys.exit(check_programs.main())
"""


def run_there(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(CORE)}
    child = subprocess.run(
        [PYTHON, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert child.returncode in (0, 1), child.stderr[-3000:]
    return child.returncode, child.stdout


@pytest.mark.parametrize("kind", ["train", "test", "predict", "stack", "train_any", "test_any"])
def test_a_step_of_a_small_model_is_one_launch(kind):
    wanted = ["--card", "RTX 3060", "--model", "mlp", "--kind", kind]
    status, text = run_there(str(FOLDER / "check_programs.py"), *wanted)
    assert status == 0, text
    names, row = (line.split("\t") for line in text.splitlines())
    found = dict(zip(names, row, strict=True))
    assert (found["launches"], found["graph"], found["fails"]) == ("1", "one", "-")


def test_what_gpu_setup_chooses_for_a_card_compiles():
    # A T4 has no bfloat16, for which XLA makes no program of attention.
    wanted = ["--card", "T4", "--model", "transformer", "--kind", "train", "--precision", "auto"]
    status, text = run_there(str(FOLDER / "check_programs.py"), *wanted)
    assert status == 0, text


def test_a_run_time_trip_count_fails_where_it_must_be_known():
    status, text = run_there("-c", AS_IF_KNOWN)
    assert status == 1
    assert "how often 1 loops run" in text


def test_a_loop_that_copies_its_block_fails():
    status, text = run_there("-c", WITHOUT_MATRIX)
    assert status == 1
    assert "is as large as the block" in text
