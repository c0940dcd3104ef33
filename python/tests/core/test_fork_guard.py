"""Refusing what would hang: TensorFlow in a fork of the process that imported it."""

import os

import pytest
from children import run_python

FORKED = """
import os, sys
import numpy as np
from gpukeras.core import errors
from gpukeras.backend import runtime
keras = runtime.keras()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.predict(np.zeros((4, 2), "float32"), verbose=0)
child = os.fork()
if child == 0:
    said = []
    for use in (runtime.tensorflow, runtime.keras):
        try:
            use()
        except errors.ForkError as error:
            said.append(error.message + error.hint)
    whole = all("a fork of the one that imported TensorFlow" in one for one in said)
    os._exit(0 if len(said) == 2 and whole and "gpu_run()" in said[0] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), runtime.keras() is keras)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_is_refused_and_its_parent_goes_on():
    done = run_python("-c", FORKED)
    assert done.stdout.split() == ["0", "True"], done.stderr
