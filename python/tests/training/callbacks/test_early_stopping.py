import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import few

from gpukeras import SpecError
from gpukeras.backend import runtime
from gpukeras.engine.optimizer import override_schedule
from gpukeras.engine.schedules import parse_schedule
from gpukeras.training.callbacks.early_stopping import (
    EarlyStopping,
    EarlyStoppingSpec,
    MetricMonitor,
    Plateau,
    choose_monitor,
    parse_early_stopping,
)
from gpukeras.training.callbacks.keras_class import as_callback

# Watching ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "options", "verdicts", "best_epoch"),
    [
        ([3, 2, 1], {}, "bbb", 3),
        ([1, 2, 3, 0], {"patience": 2}, "bwdb", 4),
        ([1, 1, 1], {"patience": 2}, "bwd", 1),
        ([1, 2, 3], {"mode": "max"}, "bbb", 3),
        ([1, 0.95, 0.85, 0.8], {"min_delta": 0.1, "patience": 2}, "bwbw", 3),
        ([1, 2, 2, 2, 2], {"patience": 1, "cooldown": 2}, "bdwdw", 1),
        ([math.nan, 1, math.nan, -math.inf], {"patience": 3}, "wbww", 2),
        ([math.nan, math.nan], {"patience": 2}, "wd", 0),
        ([math.nan, math.inf, 1], {"mode": "max", "patience": 3}, "wwb", 3),
    ],
)
def test_a_watch_tells_better_from_waiting_and_due(values, options, verdicts, best_epoch):
    watch = MetricMonitor(**{"mode": "min", "patience": 5, **options})
    seen = [watch.see(value, epoch) for epoch, value in enumerate(values, 1)]
    assert "".join(verdict[0] for verdict in seen) == verdicts
    assert watch.best_epoch == best_epoch


values = st.lists(st.integers(0, 8).map(lambda tenths: tenths / 8), min_size=1, max_size=25)


@given(values, st.integers(1, 4), st.sampled_from([0.0, 0.25]), st.integers(0, 25))
def test_a_watch_goes_on_from_its_state(seen, patience, min_delta, cut):
    whole = MetricMonitor("min", patience, min_delta, cooldown=2)
    first, second = (MetricMonitor("min", patience, min_delta, cooldown=2) for _ in range(2))
    verdicts = [whole.see(value, epoch) for epoch, value in enumerate(seen, 1)]
    again = [first.see(value, epoch) for epoch, value in enumerate(seen[:cut], 1)]
    second.set_state(json.loads(json.dumps(first.get_state())))
    again += [second.see(value, epoch) for epoch, value in enumerate(seen[cut:], cut + 1)]
    assert again == verdicts
    assert second == whole


@pytest.mark.tf
@settings(max_examples=50)
@given(values, st.integers(1, 4), st.integers(0, 3), st.sampled_from(["min", "max"]))
def test_a_watch_is_due_when_keras_lowers_the_rate(seen, patience, cooldown, mode):
    keras = runtime.keras()
    model = keras.Sequential()
    model.optimizer = keras.optimizers.SGD(1.0)
    own = keras.callbacks.ReduceLROnPlateau(
        "loss", factor=0.5, patience=patience, mode=mode, min_delta=0.125, cooldown=cooldown
    )
    own.set_model(model)
    own.on_train_begin()
    watch, rate = MetricMonitor(mode, patience, 0.125, cooldown), 1.0
    for epoch, value in enumerate(seen):
        own.on_epoch_end(epoch, {"loss": value})
        rate *= 0.5 if watch.see(value, epoch + 1) == "due" else 1.0
        assert float(model.optimizer.learning_rate) == rate


def test_the_validation_loss_is_watched_where_there_is_one():
    assert choose_monitor(None, ["loss", "val_loss"]) == "val_loss"
    assert choose_monitor(None, ["loss", "mae"]) == "loss"
    assert choose_monitor("mae", ["loss", "mae"]) == "mae"
    with pytest.raises(SpecError, match='`monitor` is "val_mae", which is not') as error:
        choose_monitor("val_mae", ["loss", "mae"])
    assert error.value.hint == "Metrics are loss, mae."
    assert error.value.details == {"arg": "monitor"}


# Options -----------------------------------------------------------------------------------------


def test_early_stopping_is_a_number_of_epochs_or_a_mapping():
    assert parse_early_stopping(5.0) == EarlyStoppingSpec(5)
    spec = parse_early_stopping({"patience": 2.0, "monitor": "val_auc", "restore_best": False})
    assert spec == EarlyStoppingSpec(2, "val_auc", restore_best=False)
    assert spec.min_delta == 0.0  # any improvement counts


@pytest.mark.parametrize(
    ("wanted", "arg"),
    [
        (0, "early_stopping"),
        (True, "early_stopping"),
        (2.5, "early_stopping"),
        ("5", "early_stopping"),
        ({}, "early_stopping"),
        ({"monitor": "loss"}, "early_stopping"),
        ({"patience": 0}, "patience"),
        ({"patience": 3, "mode": "auto"}, "mode"),
        ({"patience": 3, "monitor": 1}, "monitor"),
        ({"patience": 3, "min_delta": -1}, "min_delta"),
        ({"patience": 3, "restore_best": 1}, "restore_best"),
        ({"patience": 3, "start_epoch": 0}, "start_epoch"),
        ({"patience": 3, "baseline": 1}, "baseline"),
    ],
)
def test_bad_early_stopping_is_refused_by_name(wanted, arg):
    with pytest.raises(SpecError, match=f"`{arg}`") as error:
        parse_early_stopping(wanted)
    assert error.value.details == {"arg": arg}


# Callbacks ---------------------------------------------------------------------------------------


def a_walker(rate=1.0):
    """A model of one weight: epoch k brings the weight to minus the sum of the rates so far."""
    keras = runtime.keras()
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(keras.optimizers.SGD(rate), lambda y, prediction: keras.ops.mean(prediction))
    return model


def walk(model, callbacks, epochs, scores=(), name="error"):
    """Trains an epoch a step; the callbacks see the scores as a metric."""
    keras = runtime.keras()

    def put(epoch, logs):
        if scores:
            logs[name] = scores[epoch]

    x = np.ones((1, 1), np.float32)
    first = keras.callbacks.LambdaCallback(on_epoch_end=put)
    history = model.fit(x, x, epochs=epochs, verbose=0, callbacks=[first, *callbacks])
    return len(history.epoch), float(model.get_weights()[0][0, 0])


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(
    ("scores", "options", "epochs", "best", "weight"),
    [
        ([3, 1, 2, 2, 2], {"patience": 2}, 4, 2, -2),
        ([3, 1, 2, 2, 2], {"patience": 2, "restore_best": False}, 4, 0, -4),
        ([3, 1, 2, 0, 2], {"patience": 2}, 5, 4, -4),  # it ran to its end
        ([3, 1, 2, 0, 2], {"patience": 2, "mode": "max"}, 3, 1, -1),
        ([0, 3, 2, 2, 2], {"patience": 3, "start_epoch": 2}, 5, 3, -3),
        ([math.nan] * 5, {"patience": 3}, 3, 0, -3),
        ([2, math.nan, math.nan, 1, 1], {"patience": 3}, 5, 4, -4),
    ],
)
def test_a_training_stops_and_ends_with_its_best_weights(scores, options, epochs, best, weight):
    callback = as_callback(EarlyStopping, EarlyStoppingSpec(**{"monitor": "error", **options}))
    assert walk(a_walker(), [callback], 5, scores) == (epochs, weight)
    assert callback.best_epoch == best
    assert callback.stopped == (epochs < 5)


@pytest.mark.tf
def test_what_is_watched_is_told_from_the_first_epoch_on():
    callback = as_callback(EarlyStopping, EarlyStoppingSpec(2))
    assert callback.explain() == ""
    walk(a_walker(), [callback], 1, [1.0], "val_loss")
    assert callback.explain() == "val_loss (lower is better)"
    callback = as_callback(EarlyStopping, EarlyStoppingSpec(2, "val_auc"))
    walk(a_walker(), [callback], 1, [1.0], "val_auc")
    assert callback.explain() == "val_auc (higher is better)"


@pytest.mark.tf
def test_a_metric_that_is_not_there_is_refused_at_the_first_epoch():
    model = a_walker()
    callback = as_callback(EarlyStopping, EarlyStoppingSpec(2, "val_loss"))
    with pytest.raises(SpecError, match='"val_loss", which is not among') as error:
        walk(model, [callback], 5)
    assert error.value.hint == "Metrics are loss."
    assert model.get_weights()[0][0, 0] == -1


@pytest.mark.tf
@pytest.mark.parametrize("cut", few(range(1, 5), 2))
def test_early_stopping_goes_on_from_its_state(cut):
    scores, spec = [3, 1, 2, 2, 2, 2], EarlyStoppingSpec(3, "error")
    first, second = as_callback(EarlyStopping, spec), as_callback(EarlyStopping, spec)
    model = a_walker()
    walk(model, [first], cut, scores)
    model.set_weights([np.full((1, 1), -float(cut), np.float32)])  # those before the best came back
    plain, arrays = first.get_state()
    second.set_state(json.loads(json.dumps(plain)), {"other/0000": np.zeros(3), **arrays})
    epochs, weight = walk(model, [second], 6 - cut, scores[cut:])
    assert (cut + epochs, weight) == (5, -2)


@pytest.mark.tf
def test_a_training_that_was_stopped_goes_on_with_more_patience_or_another_metric():
    first = as_callback(EarlyStopping, EarlyStoppingSpec(2, "error"))
    walk(a_walker(), [first], 5, [1, 2, 2])
    state = first.get_state()
    known = {"patience": 2, "monitor": "error"}
    for change, stopped, wait in [({}, True, 2), ({"patience": 5}, False, 2)]:
        again = as_callback(EarlyStopping, EarlyStoppingSpec(**{**known, **change}))
        again.set_state(*state)
        assert (again.stopped, again.watch.wait, again.best_epoch) == (stopped, wait, 1)
    other = as_callback(EarlyStopping, EarlyStoppingSpec(2, "loss"))
    other.set_state(*state)
    assert (other.stopped, other.watch.metric, other.best_epoch) == (False, "", 0)


@pytest.mark.tf
def test_kept_weights_do_not_change_with_the_models():
    model, callback = a_walker(), as_callback(EarlyStopping, EarlyStoppingSpec(2, "error"))
    callback.set_model(model)
    callback.on_epoch_end(0, {"error": 1.0})
    for variable in model.weights:
        variable.assign_add(variable * 0 + 7)
    assert callback.get_state()[1]["best/0000"] == 0
    callback.restore_best()
    assert model.get_weights()[0] == 0


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize("jit", [False, True])
def test_a_plateau_lowers_the_rates_of_the_epochs_after_it(jit):
    spec = parse_schedule(
        {"kind": "plateau", "patience": 2, "monitor": "error", "factor": 0.5, "min_rate": 0.2}
    )
    model = a_walker()
    model.jit_compile = jit
    with override_schedule(model, spec, 1, 9) as rates:
        callback = as_callback(Plateau, spec, rates)
        _, weight = walk(model, [callback], 9, [1] * 9)
        # two more epochs of each: the first of all sets the best
        steps = np.array([1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2], np.float32)
        assert weight == -np.cumsum(steps)[-1]
        assert rates.current() == np.float32(0.2)
    assert callback.reductions == [3, 5, 7]
    assert float(model.optimizer.learning_rate) == 1.0


@pytest.mark.tf
def test_a_plateau_goes_on_from_its_state():
    spec = parse_schedule({"kind": "plateau", "patience": 2, "monitor": "error"})
    model = a_walker()
    with override_schedule(model, spec, None, 4) as rates:
        first = as_callback(Plateau, spec, rates)
        walk(model, [first], 4, [1] * 4)
        plain, arrays = first.get_state()
        state = rates.get_state()
    assert arrays == {}
    with override_schedule(model, spec, None, 4, start=0) as rates:
        rates.set_state(*state)
        second = as_callback(Plateau, spec, rates)
        second.set_state(json.loads(json.dumps(plain)), arrays)
        walk(model, [second], 1, [1])
        assert rates.current() == 0.25
    assert second.reductions == [3, 1]  # Keras' count of epochs began anew
