"""What a training of a stack does at its epochs, on stacks whose state is a number a model."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpukeras.core.errors import SpecError
from gpukeras.engine.schedules import PlateauSpec
from gpukeras.many.callbacks import (
    Divergence,
    Recording,
    StackEarlyStopping,
    StackEvents,
    StackPlateau,
    StoppedError,
)
from gpukeras.many.fits import ModelHistory
from gpukeras.training.callbacks.early_stopping import EarlyStoppingSpec
from gpukeras.training.listener import ProgressReporter


class Models:
    """A stack whose state changes in place, as it does on JAX."""

    def __init__(self, *values, stuck=()):
        self.state = np.array(values, float)
        self.stuck = stuck

    def copy_state(self):
        return self.state.copy()

    def keep(self, better, before):
        return self.copy_state() if before is None else np.where(better, self.state, before)

    def are_stuck(self):
        return np.isin(np.arange(len(self.state)), self.stuck)

    def are_finite(self):
        return np.isfinite(self.state)[:, None]


def callback(kind, model, histories, *arguments):
    made = kind(histories, *arguments)
    made.model = model
    return made


def record(histories, **metrics):
    """Adds an epoch to histories; None for a model that rests."""
    for name, values in metrics.items():
        for history, value in zip(histories, values, strict=True):
            if value is not None:
                history.metrics.setdefault(name, []).append(value)


# Losses that are no numbers -----------------------------------------------------------------------


def test_a_model_whose_loss_is_no_number_goes_back_to_the_epoch_before():
    models, histories = Models(1, 2, 3), [ModelHistory() for _ in range(3)]
    histories[2].stopped = "early"  # it rests: its loss is that of no rows
    divergence = callback(Divergence, models, histories)
    divergence.on_epoch_begin(0)
    models.state += 10
    divergence.on_epoch_end(0, {"loss": np.array([0.5, np.inf, np.nan])})
    assert models.state.tolist() == [11, 2, 13]
    assert [one.stopped for one in histories] == ["", "non_finite", "early"]


def test_a_model_that_loss_scaling_lets_train_no_more_has_no_loss():
    models, histories, logs = Models(1, stuck=[0]), [ModelHistory()], {"loss": 0.5}
    divergence = callback(Divergence, models, histories)
    divergence.on_epoch_begin(0)
    divergence.on_epoch_end(0, logs)
    assert histories[0].stopped == "non_finite"
    assert np.isnan(logs["loss"]).all()


def test_weights_that_are_no_numbers_go_back_though_the_loss_is_one():
    models, histories = Models(1, np.inf, 3), [ModelHistory() for _ in range(3)]
    divergence = callback(Divergence, models, histories)
    divergence.on_epoch_begin(0)
    models.state[0] = np.nan  # that of the second model was none before
    logs = {"loss": np.array([0.5, 0.5, 0.5])}
    divergence.on_epoch_end(0, logs)
    assert models.state.tolist() == [1, np.inf, 3]
    assert [one.stopped for one in histories] == ["non_finite", "", ""]
    assert np.isnan(logs["loss"]).tolist() == [True, False, False]


# Histories ----------------------------------------------------------------------------------------


def test_a_model_without_validation_rows_has_no_metrics_of_them():
    histories = [ModelHistory(), ModelHistory()]
    logs = {"loss": np.array([1.0, 2.0]), "val_loss": np.array([3.0, 0.0])}
    callback(Recording, Models(0, 0), histories, [True, False]).on_epoch_end(0, logs)
    assert [one.metrics for one in histories] == [
        {"loss": [1.0], "val_loss": [3.0]},
        {"loss": [2.0]},
    ]


# Early stopping -----------------------------------------------------------------------------------


def stop(epochs, **options):
    """Runs early stopping on the losses of two models; returns their states, and histories."""
    models, histories = Models(0, 0), [ModelHistory() for _ in range(2)]
    stopping = callback(
        StackEarlyStopping, models, histories, EarlyStoppingSpec(patience=2, **options), {}
    )
    for epoch, losses in enumerate(epochs):
        models.state += 1
        record(histories, loss=[0.0, 0.0], val_loss=losses)
        stopping.on_epoch_end(epoch)
    stopping.restore_best()
    return models.state.tolist(), histories


def test_each_model_ends_with_the_state_of_its_best_epoch():
    states, histories = stop([(3, 3), (2, 4), (1, 5)])
    assert states == [3, 1]
    assert [one.best_epoch for one in histories] == [3, 1]
    assert [one.stopped for one in histories] == ["", "early"]


def test_a_model_without_a_best_epoch_ends_with_its_last_state():
    states, histories = stop([(3, np.nan), (2, np.nan)])
    assert states == [2, 2]
    assert [one.best_epoch for one in histories] == [2, 0]


def test_a_model_that_has_stopped_is_not_looked_at():
    states, histories = stop([(3, 3), (3, 3), (3, 3), (1, 1)])
    assert states == [1, 1]
    assert [one.best_epoch for one in histories] == [1, 1]


def test_epochs_before_the_first_are_not_looked_at():
    states, histories = stop([(0, 0), (3, 3), (2, 4)], start_epoch=2)
    assert states == [3, 2]
    assert [one.best_epoch for one in histories] == [3, 2]


def test_states_that_are_not_to_be_restored_stay():
    states, histories = stop([(0, 0), (3, 3), (2, 4)], restore_best=False)
    assert states == [3, 3]
    assert [one.stopped for one in histories] == ["early", "early"]


def test_an_unknown_metric_is_named():
    with pytest.raises(SpecError, match='`monitor` is "val_auc", which is not among the metrics'):
        stop([(1, 1)], monitor="val_auc", start_epoch=5)


# Rates on a plateau -------------------------------------------------------------------------------


def test_a_plateau_lowers_the_rates_of_the_model_that_it_is_of():
    lowered, histories = [], [ModelHistory() for _ in range(3)]
    histories[2].stopped = "early"
    histories[2].metrics = {"loss": [1.0]}
    rates = SimpleNamespace(reduce=lambda *given: lowered.append(given))
    spec = PlateauSpec(factor=0.1, patience=1, min_rate=0.01)
    plateau = callback(StackPlateau, Models(0, 0, 0), histories, spec, {}, rates)
    for epoch, losses in enumerate([(3, 3, None), (2, 3, None)]):
        record(histories, loss=losses)
        plateau.on_epoch_end(epoch)
    assert lowered == [(1, 0.1, 0.01)]


# Events -------------------------------------------------------------------------------------------


def events_of(histories, answer):
    heard = []

    def on_event(event):
        heard.append((event["kind"], event["epoch"], event["metrics"]))
        return answer

    models = Models(*[0] * len(histories))
    listener = ProgressReporter(on_event, 3)
    return callback(StackEvents, models, histories, listener), models, heard


def test_an_epoch_is_told_with_the_means_of_the_models_that_trained_in_it():
    histories = [ModelHistory(), ModelHistory(), ModelHistory(stopped="early")]
    record(histories, loss=[4.0, 4.0, 9.0])
    record(histories, loss=[1.0, 3.0, None], f1=[[1.0], [1.0], None], val_loss=[5.0, None, None])
    events, models, heard = events_of(histories, False)
    events.on_epoch_end(1, {})
    assert heard == [("epoch", 2, {"loss": 2.0, "val_loss": 5.0})]
    assert not models.stop_training


@pytest.mark.parametrize(("answer", "stopped"), [(True, ""), (False, "early")])
def test_a_training_ends_by_the_user_or_when_no_model_trains(answer, stopped):
    events, models, _ = events_of([ModelHistory(stopped=stopped)], answer)
    events.on_epoch_end(0, {"loss": 1.0})
    assert models.stop_training


def test_the_user_ends_an_epoch_between_calls(monkeypatch):
    monkeypatch.setattr("gpukeras.training.listener.EVENT_S", 0.0)
    events, _, heard = events_of([ModelHistory()], True)
    events.on_epoch_begin(1)
    with pytest.raises(StoppedError):
        events.on_engine_call_end(0, {})
    assert heard == [("waiting", 2, {})]
