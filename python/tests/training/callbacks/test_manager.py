from types import SimpleNamespace

import numpy as np
import pytest
from small_fits import make_model

from gpukeras import SpecError
from gpukeras.core.options import FitSpec
from gpukeras.engine.optimizer import read_rate
from gpukeras.training.callbacks.manager import open_callback_manager
from gpukeras.training.progress import Progress

pytestmark = pytest.mark.tf

PLATEAU = {"kind": "plateau", "factor": 0.5, "patience": 1}
STOPPING = {"patience": 1, "monitor": "loss"}


def built(**options):
    model = make_model(**options)
    model.optimizer.build(model.trainable_variables)
    return model


def opened(model, kept=None, **options):
    state = SimpleNamespace(keepers=kept or {})
    loader = SimpleNamespace(steps=10, exact=True, wait_s=0.0)
    return open_callback_manager(
        model, FitSpec(epochs=4, **options), Progress(), loader, state=state
    )


def weights(model):
    return [value.copy() for value in model.get_weights()]


def test_without_options_there_are_none():
    with opened(built()) as manager:
        assert manager.averages is None
        assert (manager.callbacks, manager.get_state(), manager.explain()) == ([], {}, [])
        assert (manager.stopped, manager.best_epoch, manager.keeps_best, manager.reason) == (
            False,
            0,
            False,
            "",
        )
        manager.show_averages()
        manager.hide_averages()
        manager.settle()


@pytest.mark.float32(reason="reads clipnorm of the outer optimizer")
def test_the_optimizer_is_as_before_whatever_happens():
    model = built()
    before = read_rate(model), model.optimizer.clipnorm
    options = {"schedule": {"kind": "one_cycle", "max_rate": 1.0}, "clip_norm": 0.1}
    seen = []

    def fail():
        with opened(model, **options):
            seen.extend([read_rate(model), model.optimizer.clipnorm])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen[0] != before[0]
    assert seen[1] == 0.1
    assert (read_rate(model), model.optimizer.clipnorm) == before


def see(manager, *losses, first=0):
    """The epochs' ends, as Keras tells its callbacks of them."""
    for epoch, loss in enumerate(losses, first):
        for callback in manager.callbacks:
            callback.on_epoch_end(epoch, {"loss": loss})


def test_early_stopping_tells_why_and_gives_the_best_weights_back():
    model = built()
    with opened(model, early_stopping=STOPPING) as manager:
        see(manager, 1.0)
        best = weights(model)
        assert not manager.stopped
        model.set_weights([value + 1 for value in best])
        see(manager, 2.0, first=1)
        assert manager.stopped
        assert (manager.best_epoch, manager.keeps_best) == (1, True)
        assert manager.reason.endswith("has not improved for 1 epoch")
        manager.settle()
    for found, expected in zip(model.get_weights(), best, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_plateau_lowers_the_rate_and_says_when():
    model = built()
    with opened(model, schedule=PLATEAU) as manager:
        before = read_rate(model)
        see(manager, 1.0, 1.0)
        assert read_rate(model) == pytest.approx(before / 2)
        (said,) = manager.explain()
        assert said == "The learning rate was lowered after epoch 2."


def test_averages_are_shown_and_hidden_and_stay_in_the_end():
    model = built()
    with opened(model, ema=0.5) as manager:
        before = weights(model)
        model.set_weights([value + 1 for value in before])
        now = weights(model)
        manager.show_averages()
        np.testing.assert_array_equal(model.get_weights()[0], before[0])
        manager.hide_averages()
        np.testing.assert_array_equal(model.get_weights()[0], now[0])
        manager.settle()
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


def test_all_go_on_from_what_a_checkpoint_keeps():
    options = {"schedule": PLATEAU, "early_stopping": STOPPING, "ema": 0.5}
    with opened(built(), **options) as manager:
        see(manager, 1.0, 2.0)
        kept = manager.get_state()
    assert sorted(kept) == ["averages", "early", "plateau", "rates"]
    with opened(built(), kept, **options) as again:
        assert (again.stopped, again.best_epoch) == (manager.stopped, manager.best_epoch)
        for name, (plain, arrays) in kept.items():
            found = again.get_state()[name]
            assert found[0] == plain, name
            assert sorted(found[1]) == sorted(arrays), name


def test_clipping_in_two_ways_is_refused():
    with pytest.raises(SpecError, match="one way only"), opened(built(), clip_norm=1, clip_value=1):
        pass
