"""An epoch's blocks are run once each, wherever it begins and whatever runs them."""

import numpy as np
import pytest
from compiled_blocks import make_block, make_engines
from nightly import few
from small_fits import make_model

from gpukeras.backend import tensor_ops
from gpukeras.engine.autotune import EngineAutotuner
from gpukeras.engine.epoch_loop import EpochLoop

pytestmark = pytest.mark.tf


def make_runner(**options):
    block, model = make_block(7), make_model()
    engines = make_engines(model, block)
    return EpochLoop(engines, EngineAutotuner(("keras",), 100, "as asked"), **options), block, model


@pytest.mark.slow
@pytest.mark.parametrize("done", [0, 3, 7, 9, 14])
def test_an_epoch_goes_on_where_it_was_left(done):
    runner, block, model = make_runner()
    runner.begin(iter([block, block]), done)
    assert runner.position == done
    assert runner.rows == 4 * done
    runner.advance()
    assert runner.ended
    assert runner.position == 14
    assert runner.rows == 4 * 14
    assert model.optimizer.iterations.numpy() == 14 - done


@pytest.mark.float32(reason="loss scaling leaves out a step")
def test_targets_cut_blocks():
    runner, block, model = make_runner()
    runner.begin(iter([block, block]))
    for target in (2, 9, 9, 13):
        runner.advance(target)
        assert runner.position == target
        assert model.optimizer.iterations.numpy() == target


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["graph_loop", "compiled"], "graph_loop"))
@pytest.mark.parametrize("done", [0, 1, 6])
def test_a_program_for_smaller_blocks_runs_a_large_one_in_parts(engine, done):
    small, large, results = make_block(3), make_block(7), []
    for first in (small, large):
        model = make_model()
        engines = make_engines(model, first)
        engines.run(engine, first, 0, 0)
        program = engines._made[engine]
        engines.run(engine, large, done, 7 - done)
        assert engines._made[engine] is program
        assert model.optimizer.iterations.numpy() == 7 - done
        results.append(np.concatenate([np.ravel(weight) for weight in model.get_weights()]))
    np.testing.assert_array_equal(*results)


@pytest.mark.slow
def test_an_engine_is_prepared_again_for_blocks_of_another_shape():
    small, large = make_block(40), make_block(90)
    model, chooser = make_model(), EngineAutotuner(("graph_loop", "compiled"), 10**7)
    engines = make_engines(model, small)
    runner = EpochLoop(engines, chooser)
    while "compiled" not in engines._made:
        runner.begin(iter([large]))
        runner.advance()
    engines._made["compiled"].wait()
    assert (chooser.engine, chooser.preparing) == ("graph_loop", "compiled")
    while chooser.choice is None:
        runner.begin(iter([small]))
        runner.advance()
    assert [trial.engine for trial in chooser.trials] == ["graph_loop", "compiled"]
    assert 0 < engines.prepared_s <= chooser.trials[-1].start_s
    assert chooser.engine == engines.chosen


@pytest.mark.slow
def test_programs_of_known_length_are_tried_on_whole_blocks():
    block, calls = make_block(), []
    engines = make_engines(make_model(), block, static=True)
    run, chooser = engines.run, EngineAutotuner(("graph_loop", "compiled"), 10**7)
    engines.run = lambda *given: calls.append((given[0], *given[2:])) or run(*given)
    runner = EpochLoop(engines, chooser)
    while chooser.choice is None:
        runner.begin(iter([block]))
        runner.advance()
    assert {call[1:] for call in calls if call[0] == "compiled"} == {(0, 40)}
    assert chooser.choice.reason.startswith("measured fastest: ")


def test_a_listener_may_stop_it():
    runner, block, _ = make_runner()
    runner.begin(iter([block]))
    logs = runner.advance(after_call=lambda position, logs: position >= 1)
    assert runner.position == 1
    assert np.isfinite(float(logs["loss"]))


def test_where_calls_return_early_those_that_are_timed_are_waited_for(monkeypatch):
    monkeypatch.setattr(tensor_ops, "returns_early", lambda device: True)
    waited, paced, times = [], [], []
    monkeypatch.setattr(tensor_ops, "wait", waited.append)
    monkeypatch.setattr(tensor_ops, "keep_pace", paced.append)
    runner, block, _ = make_runner()
    runner.begin(iter([block]))
    runner.advance(1)
    assert len(waited) == 1  # a call on trial
    runner.chooser.settle("keras", "settled")
    monkeypatch.setattr(runner.chooser, "count", lambda left, batches: min(left, 2))
    monkeypatch.setattr(
        runner.chooser, "record", lambda count, seconds, compiled_s: times.append(seconds)
    )
    waited.clear()
    runner.begin(iter([block]))
    runner.advance()  # calls of 2, 2, 2 and 1 batch
    assert np.isfinite(times).tolist() == [True, True, True, False]
    assert (len(waited), len(paced)) == (3, 1)
    assert paced == waited[-1:]


@pytest.mark.slow
def test_one_engine_after_another_trains_each_batch_once():
    block, model = make_block(500), make_model()
    chooser = EngineAutotuner(("graph_loop", "keras", "compiled"), 10**7)
    runner = EpochLoop(make_engines(model, block), chooser)
    epochs = 0
    while chooser.choice is None:
        runner.begin(iter([block]))
        runner.advance()
        epochs += 1
        assert runner.position == 500
        assert model.optimizer.iterations.numpy() == 500 * epochs
    tried = [trial.engine for trial in chooser.choice.trials]
    assert tried[0] == "graph_loop"
    assert tried[-1] == "compiled"
    assert {"graph_loop", "compiled"} <= runner.engines.ran | set(tried)
