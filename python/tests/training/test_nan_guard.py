import numpy as np
import pytest
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime, tensor_ops
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.loader import loader
from gpukeras.engine import engines
from gpukeras.engine import train_step as engine_train_step
from gpukeras.training import fit, listener, nan_guard

pytestmark = pytest.mark.tf


def exploding(**options):
    return make_model(optimizer=runtime.keras().optimizers.SGD(1e30), **options)


@pytest.mark.parametrize(
    "engine", few(["keras", "graph_loop", "compiled", "auto"], "keras", "graph_loop")
)
def test_a_loss_that_is_no_number_ends_the_training_with_the_weights_of_before(engine):
    model = exploding()
    before = [weight.copy() for weight in model.get_weights()]
    report = fit.fit(model, make_dataset(2000), {"epochs": 3, "engine": engine})
    assert (report.stopped, report.epochs, report.history) == ("non_finite", 0, {})
    assert "at step 2 of epoch 1 (learning rate 1e+30)" in report.reasons["stopped"]
    assert "has the weights that it began with" in report.notes[0]
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_steps_after_a_loss_that_is_no_number_are_taken_back_too(monkeypatch):
    monkeypatch.setattr(engines, "knows_trip_counts", lambda device, deterministic: True)
    test_a_loss_that_is_no_number_ends_the_training_with_the_weights_of_before("compiled")


@pytest.mark.slow
def test_the_epochs_before_stay_and_their_best_weights_too():
    model, data = make_model(), make_dataset(400, validation=0.2)

    class Explode(runtime.keras().callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 3:
                self.model.optimizer.learning_rate.assign(1e30)

    options = {"epochs": 9, "early_stopping": 9, "engine": "graph_loop"}
    report = fit.fit(model, data, options, callbacks=[Explode()])
    assert (report.stopped, report.epochs) == ("non_finite", 3)
    assert len(report.history["val_loss"]) == 3
    assert "of epoch 4" in report.notes[0]
    assert f"the weights of its best epoch, {report.best_epoch}" in report.notes[0]
    assert np.isfinite(model.get_weights()[0]).all()


def rooted(rows, batch_size):
    """A model whose gradient is no number where its loss is 0, and rows that it fits at last."""
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.01), lambda y, p: keras.ops.norm(y - p))
    features = {"kind": "array", "values": np.array(rows, np.float32)[:, None]}
    labels = {"kind": "numeric", "values": np.array(rows) * 2, "levels": []}
    options = {"batch_size": batch_size, "shuffle": False}
    return model, build_dataset(features, options, labels)


@pytest.mark.parametrize("epochs", [1, 2])
def test_weights_that_are_no_numbers_are_taken_back_though_the_loss_is_one(epochs):
    model, data = rooted([1, 1, 1, 1, 0, 0], 2)
    before = model.get_weights()
    report = fit.fit(model, data, {"epochs": epochs, "engine": "graph_loop"})
    assert (report.stopped, report.epochs) == ("non_finite", 0)
    said = "weights were no finite numbers after step 3 of epoch 1, whose loss was still one"
    assert report.reasons["stopped"] == said
    np.testing.assert_array_equal(model.get_weights(), before)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "EVENT_S", 0.0)
    model, data = rooted([1, 1, 1, 1, 0, 0, 1, 1], 2)
    monkeypatch.setattr(loader, "BLOCK_BATCHES", 1)
    options = {"epochs": 1, "engine": "keras", "checkpoint": {"folder": str(tmp_path / "run")}}
    options["checkpoint"]["every_s"] = 0
    assert fit.fit(model, data, options).stopped == "non_finite"
    for path in (tmp_path / "run").glob("*.npz"):
        with np.load(path) as saved:
            assert np.isfinite(saved["model/weights/0000"]).all(), path.name


def scaled():
    keras = runtime.keras()
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-5), initial_scale=1e38)
    model = make_model()
    model.compile(scaling, model.loss, loss_weights=[1000])  # 1e41 is beyond float32
    return model


@pytest.mark.float32(reason="its scale overflows in each step of float16")
def test_steps_that_loss_scaling_leaves_out_are_counted():
    report = fit.fit(scaled(), make_dataset(), {"epochs": 5, "engine": "graph_loop"})
    assert report.stopped == "completed"
    assert 0 < report.skipped_steps < 35


def test_a_training_that_updates_nothing_any_more_ends():
    model = scaled()
    tensor_ops.build_state(model, make_dataset().batch(8))
    watched = nan_guard.DivergenceGuard(model)
    watched.begin_epoch(0)
    watched.watch.steps.assign(99)
    watched.check()
    watched.watch.steps.assign(100)
    watched.check()  # the scale is as it was: the model's own step does not use the optimizer
    model.optimizer.dynamic_scale.assign(1e-20)
    with pytest.raises(nan_guard.NonFiniteLoss, match="of the last 100 steps were not finite"):
        watched.check()
    assert watched.skipped == 100


def test_a_step_without_the_optimizer_is_no_reason_to_stop():
    class Own(type(make_model())):
        def train_step(self, data):
            self.trainable_weights[0].assign_sub(0.001 * self.trainable_weights[0])
            return super().test_step(data)

    model = Own([runtime.keras().layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    report = fit.fit(model, make_dataset(4000), {"epochs": 2, "engine": "graph_loop"})
    assert (report.stopped, report.skipped_steps) == ("completed", 0)


def test_averages_are_taken_back_with_the_weights():
    model = make_model()
    tensor_ops.build_state(model, make_dataset().batch(8))
    averages = engine_train_step.Averages(model, 0.9)
    watched = nan_guard.DivergenceGuard(model, averages)
    watched.begin_epoch(0)
    before = averages.get_state()
    model.trainable_weights[0].assign_add(model.trainable_weights[0])
    averages.update()
    assert watched.rewind()
    after = averages.get_state()
    assert before[0] == after[0] == {"count": 0}
    np.testing.assert_array_equal(before[1]["0000"], after[1]["0000"])


def test_an_epoch_is_taken_back_only_if_its_beginning_was_kept(monkeypatch):
    model = make_model()
    tensor_ops.build_state(model, make_dataset().batch(8))
    watched = nan_guard.DivergenceGuard(model)
    watched.begin_epoch(0)  # which the training began with
    assert watched.rewind()
    monkeypatch.setattr(nan_guard, "KEEPING_SHARE", 0.0)  # no copy is worth its time
    watched.begin_epoch(1)
    assert not watched.rewind()
    monkeypatch.setattr(nan_guard, "KEEPING_SHARE", 1e9)
    watched.begin_epoch(2)
    first = model.get_weights()[0].copy()
    model.trainable_weights[0].assign_add(model.trainable_weights[0])
    assert watched.rewind()
    np.testing.assert_array_equal(model.get_weights()[0], first)
