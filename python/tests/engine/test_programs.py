"""Programs whose number of batches XLA knows: what it makes of them, and that they train alike."""

import re
from pathlib import Path

import numpy as np
import pytest
from children import run_script
from compiled_blocks import make_block, make_engines, prepare
from small_fits import make_model

from gpukeras.backend import runtime
from gpukeras.data.loader.loader import Block
from gpukeras.engine import async_compile
from gpukeras.engine.autotune import EngineAutotuner
from gpukeras.engine.epoch_loop import EpochLoop, calibrate
from gpukeras.engine.programs import cut, read_shapes

pytestmark = pytest.mark.tf
TO_HOST = re.compile(r"\b(send|recv|infeed|outfeed)(-done)?\(|custom_call_target=.*(host|callback)")


def train_in_calls_of_all_lengths():
    """Trains by programs of known length, then by one of run-time length."""
    for static in (True, False):
        block = make_block()
        engines = make_engines(make_model(), block, static=static)
        prepare(engines, block)
        for first, count in ((0, 40), (3, 13), (39, 1), (5, 9)):
            engines.run("compiled", block, first, count)
    return True


@pytest.mark.slow
def test_xla_knows_the_trip_count_and_asks_the_host_nothing(tmp_path):
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    script = f"""
        import sys
        sys.path[:0] = {folders!r}
        import test_programs
        answer = test_programs.train_in_calls_of_all_lengths()
    """
    assert run_script(script, XLA_FLAGS=f"--xla_dump_to={tmp_path}")
    named = "module_*_program{}_*.cpu_after_optimizations.txt"
    known = [file.read_text() for file in tmp_path.glob(named.format("_of_known_count"))]
    trips = [re.findall(r' while\(.*"known_trip_count":{"n":"(\d+)"}', text) for text in known]
    assert sorted(trips) == [[], ["40"]]  # of a single batch there is no loop
    assert not any(TO_HOST.search(text) or " conditional(" in text for text in known)
    (asking,) = [
        file.read_text() for file in tmp_path.glob(named.format("")) if "known" not in file.name
    ]
    assert " while(" in asking
    assert "known_trip_count" not in asking


@pytest.mark.slow
def test_both_kinds_of_loop_train_alike():
    block, results = make_block(), []
    for static in (False, True):
        layers = [runtime.keras().layers.Dropout(0.2, seed=1)]
        model = make_model(optimizer="adam", layers=layers)
        engines = make_engines(model, block, static=static)
        program = prepare(engines, block)
        engines.run("compiled", block, 0, 23)
        logs = engines.run("compiled", block, 23, 17)
        values = [*model.get_weights(), *map(np.asarray, logs.values())]
        results.append(np.concatenate([np.ravel(value) for value in values]))
        assert model.optimizer.iterations.numpy() == 40
    assert program.sizes == (40, 1)
    np.testing.assert_allclose(*results, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_single_batches_are_trained_until_longer_programs_are_there():
    block, model = make_block(), make_model()
    engines = make_engines(model, block, static=True)
    runner, epochs = EpochLoop(engines, EngineAutotuner(("compiled",), 10**6, "as asked")), 0
    while "compiled" not in engines._made or 40 not in engines._made["compiled"].sizes:
        runner.begin(iter([block]))
        runner.advance()
        epochs += 1
        assert model.optimizer.iterations.numpy() == 40 * epochs
    assert engines._made["compiled"].sizes[0] == 40


@pytest.mark.slow
def test_a_large_model_gets_the_program_of_a_single_batch_alone(monkeypatch):
    monkeypatch.setattr(async_compile, "STAND_IN_BYTES", 11)
    block, model = make_block(), make_model()
    engines = make_engines(model, block, static=True)
    program = prepare(engines, block)
    engines.run("compiled", block, 0, 9)
    assert program.sizes == (1,)
    assert model.optimizer.iterations.numpy() == 9


@pytest.mark.slow
def test_before_something_is_timed_its_program_is_compiled():
    block, counts = make_block(), []
    engines = make_engines(make_model(), block, static=True)

    def take(count):
        engines.run("compiled", block, 0, count)
        counts.append(count)
        return 1e-3 * count

    assert calibrate(engines, "compiled", block, take) == (40, 0.04)
    assert counts == [1, 40]
    assert engines._made["compiled"].sizes == (40, 1)
    engines.warm(block, "compiled", 20)
    assert engines._made["compiled"].sizes == (40, 20, 1)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 3), (0, 3)])
@pytest.mark.parametrize("rows", [4, None])
def test_batches_are_cut_from_a_matrix_of_rows(shape, rows):
    tf = runtime.tensorflow()
    values = np.arange(12 * np.prod(shape, dtype=int), dtype=np.float32).reshape(12, *shape)

    @tf.function(
        input_signature=[tf.TensorSpec([None, *shape])] + [tf.TensorSpec([], tf.int32)] * 2
    )
    def program(array, start, count):
        return cut({"x": array}, start, rows or count)["x"]

    traced = program.get_concrete_function()
    np.testing.assert_array_equal(traced(values, 5, 4), values[5:9])
    assert traced.output_shapes.as_list() == [rows, *shape]
    (sliced,) = [node for node in traced.graph.get_operations() if node.type == "Slice"]
    assert sliced.inputs[0].shape.rank <= 2  # XLA has one layout for it


def test_a_program_takes_arrays_of_its_own_structure_alone():
    array = runtime.tensorflow().zeros((8, 3))
    shapes = [read_shapes(Block(arrays, 1, 8)) for arrays in (array, (array,), {"a": array})]
    assert len(set(shapes)) == 3
    assert shapes[0] == read_shapes(Block(array[:4], 1, 4), 8)
