"""XLA compiles beside the training: no update is lost, a refusal is found, nothing breaks."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from compiled_blocks import BATCHES, make_block, make_engines
from nightly import few
from small_fits import make_model

from gpukeras.backend import runtime
from gpukeras.engine import async_compile, program_cache
from gpukeras.engine.autotune import EngineAutotuner
from gpukeras.engine.epoch_loop import EpochLoop

pytestmark = pytest.mark.tf


def wait_until_ready(engines, block):
    ready = engines.prepare("compiled", block)
    engines._made["compiled"].wait()
    return ready or engines.prepare("compiled", block)


@pytest.mark.slow
def test_updates_made_while_it_compiles_are_kept():
    block, results = make_block(), []
    for beside in (True, False):
        model = make_model(optimizer="adam")
        engines = make_engines(model, block)
        if beside:
            engines.prepare("compiled", block)
        engines.run("graph_loop", block, 0, 20)
        if beside:
            assert wait_until_ready(engines, block)
        logs = engines.run("compiled", block, 20, 20)
        values = [*model.get_weights(), *map(np.asarray, logs.values())]
        results.append([np.ravel(value) for value in values])
        assert model.optimizer.iterations.numpy() == 40
    np.testing.assert_allclose(*map(np.concatenate, results), rtol=1e-6)


@pytest.mark.slow
def test_compiling_alone_changes_no_variable():
    block, model = make_block(), make_model(optimizer="adam")
    engines = make_engines(model, block)
    before = [variable.numpy() for variable in model.variables]
    assert wait_until_ready(engines, block)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.slow
def test_large_models_and_unknown_insides_are_left_to_the_first_call(monkeypatch):
    tf = runtime.tensorflow()
    weights = tf.Variable(tf.ones(3))
    program = tf.function(lambda x: weights + x, jit_compile=True)
    concrete = program.get_concrete_function(tf.TensorSpec([], tf.float32))
    monkeypatch.setattr(async_compile, "STAND_IN_BYTES", 11)
    traced = program_cache.hold(concrete)
    assert async_compile.begin_compiling(traced, [[tf.constant(1.0)]]) is None
    assert async_compile.begin_compiling(object(), []) is None
    block, model = make_block(), make_model()
    engines = make_engines(model, block)
    assert engines.prepare("compiled", block)
    engines.run("compiled", block, 0, 3)
    assert model.optimizer.iterations.numpy() == 3


def with_text(x):
    tf = runtime.tensorflow()
    return x + tf.cast(tf.size(tf.strings.as_string(x)), x.dtype)


def with_python(x):
    tf = runtime.tensorflow()
    return tf.ensure_shape(tf.py_function(lambda value: value * 2.0, [x], x.dtype), x.shape)


@pytest.mark.slow
@pytest.mark.parametrize("function", few([with_text, with_python], with_python))
def test_an_op_that_xla_refuses_is_found_beside_the_training(function):
    keras = runtime.keras()

    class Odd(keras.layers.Layer):
        def call(self, x):
            return function(x)

        def compute_output_shape(self, shape):
            return shape

    block, model = make_block(400), make_model(layers=[Odd()])
    chooser = EngineAutotuner(("graph_loop", "compiled"), 10**7)
    runner = EpochLoop(make_engines(model, block), chooser)
    epochs = 0
    while chooser.choice is None:
        runner.begin(iter([block]))
        runner.advance()
        epochs += 1
    assert chooser.choice.engine == "graph_loop"
    assert chooser.choice.trials[-1].engine == "compiled"
    assert chooser.choice.trials[-1].refused
    assert model.optimizer.iterations.numpy() == 400 * epochs


@pytest.mark.float32(reason="loss scaling leaves out steps")
def test_a_step_that_cannot_be_traced_into_a_loop_is_left_to_keras():
    tf, keras = runtime.tensorflow(), runtime.keras()

    class Particular(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2, "softmax")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            if tf.inside_function() and tf.compat.v1.get_default_graph().name.startswith("while"):
                raise TypeError("not in a loop")
            return super().train_step(data)

    block, model = make_block(), Particular()
    model.compile("sgd", "sparse_categorical_crossentropy")
    chooser = EngineAutotuner(("graph_loop", "keras", "compiled"), 100)
    runner = EpochLoop(make_engines(model, block), chooser)
    runner.begin(iter([block]))
    runner.advance()
    assert chooser.finish().engine == "keras"
    assert "not in a loop" in chooser.trials[0].refused
    assert model.optimizer.iterations.numpy() == BATCHES


@pytest.mark.slow
def test_python_may_end_while_it_compiles():
    code = """
        import test_async_compile as t
        block, model = t.make_block(), t.make_model(optimizer="adam")
        engines = t.make_engines(model, block)
        engines.prepare("compiled", block)
        print("begun")
    """
    folders = [str(Path(__file__).parent), *filter(None, sys.path)]
    code = f"import sys; sys.path[:0] = {folders!r}\n{textwrap.dedent(code)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "begun"), done.stderr
