"""`python -m gpukeras.accelerate script.py`."""

import pytest
from children import run_python

from gpukeras.accelerate import switch
from gpukeras.accelerate.__main__ import USAGE, format_call, main

# TensorFlow looks for Keras, and imports it when its models are asked for.
SCRIPT = """
import sys
import tensorflow as tf
import numpy as np

keras = tf.keras

print(__name__, sys.argv[1:])
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(3300, 4))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, 0], verbose=0)
print(f"{history.history['loss'][0]:.5f}")
"""


@pytest.mark.tf
def test_a_script_runs_unchanged(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    plain = run_python(str(path), "a", "--b", fork=True, CUDA_VISIBLE_DEVICES="-1")
    options = ["-m", "gpukeras.accelerate", "--report", str(path), "a", "--b"]
    ours = run_python(*options, CUDA_VISIBLE_DEVICES="-1")
    assert (ours.returncode, plain.returncode) == (0, 0)
    assert ours.stdout == plain.stdout
    assert "fit() of sequential, 3,300 rows: gpukeras, " in ours.stderr
    assert "fit()" not in plain.stderr


def test_a_call_is_a_line():
    call = switch.Call("fit", "model", "keras", "a single batch", None, 0.126)
    assert format_call(call) == "fit() of model: keras, 0.13 s, a single batch"


@pytest.mark.parametrize("given", [[], ["--report"], ["--help"]])
def test_without_a_script_its_use_is_said(capsys, given):
    assert main(given) == 2
    assert capsys.readouterr().err == f"{USAGE}\n"
