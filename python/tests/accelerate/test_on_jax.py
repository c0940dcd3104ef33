"""The same on JAX, whose rows Keras shuffles by NumPy's global generator."""

import pytest
from children import run_script
from jax_runs import QUICK, needs_jax
from nightly import few

pytestmark = [pytest.mark.process, needs_jax]
ON_JAX = {"KERAS_BACKEND": "jax", "CUDA_VISIBLE_DEVICES": "-1", **QUICK}

SCRIPT = """
import keras
import numpy as np
from gpukeras.accelerate import switch

x = np.random.default_rng(1).normal(size=(800, 4)).astype("float32")
y = (x[:, 0] > 0).astype("float32")

def run(on, named):
    switch.switch(on)
    keras.utils.set_random_seed(1)
    inputs = [keras.Input((4,))] if named else []
    model = keras.Sequential([*inputs, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    seen = []
    look = lambda epoch, logs: seen.extend(model.evaluate(x[:50], y[:50], verbose=0))
    hook = keras.callbacks.LambdaCallback(on_epoch_end=look)
    for _ in range(2):  # a built model draws one order less
        history = model.fit(
            x, y, epochs=2, verbose=0, validation_split=0.1, callbacks=[hook] if named else None
        ).history
    values = [*sum(history.values(), []), *seen, *model.evaluate(x, y, verbose=0)]
    return [*values, *model.predict(x, verbose=0)[:, 0].tolist()]

known = run(False, {named})
found = run(True, {named})
engines = [call.engine for call in switch.report() if "within" not in call.reason]
apart = np.abs(np.array(known) - found).max()
answer = [float(apart), sorted(set(engines)), len(engines)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("named", few([True, False], True))
def test_calls_give_what_keras_gives(named):
    apart, engines, count = run_script(
        SCRIPT.format(named=named),
        fork=True,
        KERAS_BACKEND="jax",
        CUDA_VISIBLE_DEVICES="-1",
        **QUICK,
    )
    assert apart < 1e-6
    assert (engines, count) == (["gpukeras"], 4)


FALLS_BACK = """
from gpukeras.core.errors import DataError
from gpukeras.engine.epoch_loop import EpochLoop

def advance(self, *arguments, own=EpochLoop.advance):
    if self.back_off is not None:  # a training
        raise DataError("made up")
    return own(self, *arguments)

EpochLoop.advance = advance
""" + SCRIPT.format(named=True)


@pytest.mark.slow
def test_keras_shuffles_as_ever_after_a_failed_start():
    apart, engines, _ = run_script(FALLS_BACK, fork=True, **ON_JAX)
    assert apart == 0
    assert engines == ["gpukeras", "keras"]  # evaluations and predictions are not made to fail


SPREAD = """
import keras
keras.distribution.set_distribution(keras.distribution.DataParallel(
    devices=keras.distribution.list_devices()
))
""" + SCRIPT.format(named=True)


@pytest.mark.slow
def test_models_that_keras_spreads_over_devices_are_left_to_keras():
    apart, engines, count = run_script(
        SPREAD,
        KERAS_BACKEND="jax",
        CUDA_VISIBLE_DEVICES="-1",
        XLA_FLAGS=f"{QUICK['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
    )
    assert apart == 0
    assert (engines, count) == (["keras"], 4)
