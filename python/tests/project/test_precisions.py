"""Every lane once under each mixed precision, compared with Keras' own at that precision.

`pytest --precision` runs whole packages so; here one model goes through all of them.
"""

import json

import numpy as np
import pytest
from familied import features, labels_of
from small_fits import make_dataset
from stacked import fit_many

from gpukeras.backend import runtime
from gpukeras.core.errors import CheckpointError, ModelError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf
# A number of bfloat16 has 8 bits, one of float16 has 11; both sides round alike but for XLA.
NEAR = {"mixed_bfloat16": 2e-2, "mixed_float16": 3e-3}
POLICIES = tuple(NEAR)


@pytest.fixture(params=POLICIES)
def policy(request):
    with runtime.dtype_policy_scope(request.param):
        yield request.param


def make(units=3, last="softmax", optimizer=None, dropout=0.0):
    """A classifier whose last layer computes in 16 bits, as nobody told it otherwise."""
    keras = runtime.keras()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(units, last)]
    if dropout:
        layers.insert(1, keras.layers.Dropout(dropout, seed=2))
    model = keras.Sequential([keras.Input((5,)), *layers])
    loss = "sparse_categorical_crossentropy" if last == "softmax" else "mse"
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), loss)
    return model


def wide(values):
    return np.asarray(values).astype(np.float32)


def close(found, expected, policy, times=1.0):
    np.testing.assert_allclose(wide(found), wide(expected), atol=NEAR[policy] * times, rtol=0.02)


@pytest.mark.varies
def test_a_fit_is_scored_predicts_and_is_loaded_as_by_keras(policy, tmp_path):
    from gpukeras.export.keras_file import load_safely

    data, model, other = make_dataset(shuffle=False, validation=0.2), make(), make()
    x, y = data.arrays
    rows, kept = data.rows("train"), data.rows("validation")
    expected = other.fit(
        x[rows], y[rows], validation_data=(x[kept], y[kept]), epochs=2, batch_size=32,
        shuffle=False, verbose=0,
    )  # fmt: skip
    report = fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"})
    assert report.precision == policy
    for name in ("loss", "val_loss"):
        close(report.history[name], expected.history[name], policy)
    scored = evaluate.evaluate(model, data, "validation")
    assert scored["metrics"]["loss"] == pytest.approx(
        other.evaluate(x[kept], y[kept], verbose=0), rel=0.02
    )
    found = predict.predict(model, data=data)["values"]
    assert found.dtype == np.float32
    close(found, model.predict(x, verbose=0), policy)
    model.save(tmp_path / "model.keras")
    for here in ("float32", *POLICIES):
        with runtime.dtype_policy_scope(here):
            loaded = load_safely(tmp_path / "model.keras", "path")[0]
        assert loaded.dtype_policy.name == policy
        pairs = zip(loaded.optimizer.variables, model.optimizer.variables, strict=True)
        assert all(np.array_equal(one.numpy(), two.numpy()) for one, two in pairs)
        np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.slow
def test_a_training_resumes_bit_for_bit_and_not_in_another_precision(policy, tmp_path):
    data = make_dataset(60)
    whole, resumed = make(), make()
    options = {"engine": "graph_loop", "checkpoint": str(tmp_path)}
    fit.fit(whole, data, {"epochs": 3, "engine": "graph_loop"})
    fit.fit(make(), data, {"epochs": 2, **options})
    assert fit.fit(resumed, data, {"epochs": 3, **options}).epochs == 3
    for one, two in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    with runtime.dtype_policy_scope("float32"):
        plain = make()
    said = f"the model's precision was {policy} and is float32"
    with pytest.raises(CheckpointError, match=said):
        fit.fit(plain, data, {"epochs": 4, **options})


@pytest.mark.slow
def test_models_of_a_stack_end_as_each_alone(policy):
    keras = runtime.keras()
    data = make_dataset(rows=96)
    models = [make(optimizer=keras.optimizers.AdamW(rate)) for rate in (0.003, 0.01)]
    fits = fit_many(models, data, seeds=[1, 2], most=4, epochs=2)
    assert (fits.plan.alone, fits.plan.structures) == ((), 1), fits.plan.reason
    for number in (1, 4):
        model, rows = fits.initial(number)
        fit.fit(model, rows, {"epochs": 2, "engine": "compiled"}, batch_size=fits.batch_size)
        mine = fits.model(number)
        close(mine.get_weights()[0], model.get_weights()[0], policy)
        assert int(mine.optimizer.iterations) == int(model.optimizer.iterations)


@pytest.mark.slow
def test_each_model_of_a_stack_has_a_loss_scale_of_its_own():
    keras = runtime.keras()
    with runtime.dtype_policy_scope("mixed_float16"):
        models = [
            make(1, None, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate), scale))
            for rate, scale in ((0.01, 2.0**30), (0.02, 2.0**30))
        ]
    data = data_dataset.build_dataset(
        {"kind": "array", "values": np.random.default_rng(2).normal(size=(96, 5))},
        {"batch_size": 32},
        {"kind": "numeric", "values": np.linspace(-1, 1, 96)},
    )
    fits = fit_many(models, data, seeds=[1, 2], most=4, epochs=4)
    assert fits.plan.alone == ()
    for number in (1, 4):
        model, rows = fits.initial(number)
        report = fit.fit(model, rows, {"epochs": 4, "engine": "compiled"}, batch_size=32)
        assert report.skipped_steps > 0
        mine = [one.numpy() for one in fits.model(number).optimizer.variables[2:6]]
        theirs = [one.numpy() for one in model.optimizer.variables[2:6]]
        assert mine == theirs  # the steps since, the scale, the updates and the rate
        close(fits.model(number).get_weights()[0], model.get_weights()[0], "mixed_float16")


@pytest.mark.slow
def test_settings_are_searched(policy):
    from trialled import tune

    tuning = tune(fit={}, options={"trials": 2, "epochs": 1})
    assert np.isfinite(tuning.best.value)


@pytest.mark.slow
def test_a_family_has_its_parameters_and_its_loss_in_float32(policy):
    from gpukeras.models import mlp

    given = {"kind": "array", "values": features()}
    data = data_dataset.build_dataset(given, {"batch_size": 32, "seed": 1}, labels_of("gamma"))
    model = mlp.build_mlp(data, {"units": 8, "family": "gamma"})
    report = fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"})
    assert model(features().astype(np.float32)).dtype == "float32"
    assert np.isfinite(report.history["loss"]).all()


@pytest.mark.slow
def test_attributions_add_up(policy):
    from gpukeras.explain.gradients import attribute

    model = make(1, None)
    rows = np.random.default_rng(1).normal(size=(20, 5))
    found = attribute(model, {"kind": "array", "values": rows}, steps=20)
    close(found.values.sum(axis=1), found.outputs - found.baselines, policy, times=3)
    close(found.outputs, model.predict(rows, verbose=0)[:, 0], policy)


@pytest.mark.slow
def test_an_exported_model_predicts_the_same(policy, tmp_path):
    from gpukeras.export.export import export_model

    model, data = make(), make_dataset()
    report = export_model(model, str(tmp_path / "folder"), data=data)
    assert report.max_difference <= report.allowed == 0.02


def test_a_service_answers_in_numbers_that_json_holds(policy, tmp_path):
    model, data = make(), make_dataset()
    record = predict.predict(model, data=data)
    close(json.loads(json.dumps(record["values"].tolist())), record["values"], policy)


@pytest.mark.slow
def test_scripts_get_what_keras_gives(policy):
    from gpukeras.accelerate import switch

    data, known, model = make_dataset(), make(), make()
    x, y = data.arrays
    expected = known.fit(x, y, shuffle=False, verbose=0).history["loss"]
    switch.switch(True)
    try:
        assert model.fit(x, y, shuffle=False, verbose=0).history["loss"] == expected
        found = model.predict(x, verbose=0)
    finally:
        switch.switch(False)
    again = model.predict(x, verbose=0)
    assert found.dtype == again.dtype
    np.testing.assert_array_equal(wide(found), wide(again))


def test_types_that_do_not_meet_are_the_user_s_and_keras_error(policy):
    keras, tf = runtime.keras(), runtime.tensorflow()

    class Adds(keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.ones_like(x, dtype="float32") if training else x

    data = make_dataset(64)
    model = keras.Sequential([keras.Input((5,)), Adds(), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    said = "has type float32 that does not match type b?float16"
    with pytest.raises(TypeError, match=said):
        model.fit(*data.arrays, verbose=0)
    with pytest.raises(ModelError, match="Adds .* mixes numbers of float32 and b?float16"):
        fit.fit(model, data, {"epochs": 1})
