"""An epoch's blocks are run once each, wherever it begins and whatever runs them."""

import numpy as np
import pytest
from conftest import make_model
from test_compiling import make_block, make_engines

from gpukeras.choosing import Chooser
from gpukeras.running import Runner

pytestmark = pytest.mark.tf


def make_runner(**options):
    block, model = make_block(7), make_model()
    engines = make_engines(model, block)
    return Runner(engines, Chooser(("keras",), 100, "as asked"), **options), block, model


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


def test_targets_cut_blocks():
    runner, block, model = make_runner()
    runner.begin(iter([block, block]))
    for target in (2, 9, 9, 13):
        runner.advance(target)
        assert runner.position == target
        assert model.optimizer.iterations.numpy() == target


def test_a_listener_may_stop_it():
    runner, block, _ = make_runner(after_call=lambda position, logs: position >= 1)
    runner.begin(iter([block]))
    logs = runner.advance()
    assert runner.position == 1
    assert np.isfinite(float(logs["loss"]))


def test_one_engine_after_another_trains_each_batch_once():
    block, model = make_block(500), make_model()
    chooser = Chooser(("superstep", "keras", "compiled"), 10**7)
    runner = Runner(make_engines(model, block), chooser)
    epochs = 0
    while chooser.choice is None:
        runner.begin(iter([block]))
        runner.advance()
        epochs += 1
        assert runner.position == 500
        assert model.optimizer.iterations.numpy() == 500 * epochs
    tried = [trial.engine for trial in chooser.choice.trials]
    assert tried[0] == "superstep"
    assert tried[-1] == "compiled"
    assert {"superstep", "compiled"} <= runner.engines.ran | set(tried)
