import numpy as np
import pytest
from nightly import few
from tables import make_table

from gpukeras.backend import runtime
from gpukeras.engine import batch_dependence, rowwise
from gpukeras.models.tabular import builder
from gpukeras.models.tabular.options import KINDS

pytestmark = pytest.mark.tf


def own_loss(y, predicted):
    return runtime.keras().ops.mean((y - predicted) ** 2, axis=-1)


def make(loss="mse", metrics=None):
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, metrics=metrics)
    return model


def test_a_loss_is_another_in_other_batches_if_it_is_no_mean_over_rows():
    keras = runtime.keras()
    sums = keras.losses.MeanSquaredError(reduction="sum")
    weighted = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    assert not rowwise.explain_loss(make("mse", metrics=[own_loss]))
    assert "mean_with_sample_weight" in rowwise.explain_loss(make(weighted))
    assert 'reduction = "sum"' in rowwise.explain_loss(make(sums))
    assert not rowwise.explain_loss(make(sums), sums=True)
    assert "own_loss" in rowwise.explain_loss(make(own_loss), sums=True)
    layers = [keras.Input((4, 3)), keras.layers.Masking(), keras.layers.Dense(1)]
    masked = keras.Sequential(layers)
    masked.compile("sgd", "mse")
    assert "masked steps" in rowwise.explain_loss(masked)


def test_known_losses_and_metrics_are_those_of_rows():
    keras = runtime.keras()
    named = ["mse", "MAE", "crossentropy", "binary_crossentropy", "log_cosh", {"dense": "mse"}]
    made = [keras.losses.Huber(), keras.losses.mean_squared_error, keras.losses.CosineSimilarity()]
    for loss in [*named, *made]:
        assert not rowwise.explain_results(make(loss)), loss
    known = ["accuracy", "mae", "AUC", keras.metrics.F1Score(), keras.losses.poisson]
    for metric in known:
        assert not rowwise.explain_results(make(metrics=[metric])), metric


def test_others_say_why_they_are_not():
    keras = runtime.keras()
    unknown = {
        "own_loss": own_loss,
        "huber": keras.losses.Huber(name="huber", reduction="sum"),
        "squared_hinge": "squared_hinge",
        "dice": keras.losses.dice,
        "over_rows": keras.losses.CosineSimilarity(axis=0, name="over_rows"),
    }
    for name, loss in unknown.items():
        why = rowwise.explain_results(make(loss))
        reduced = ' (reduction = "sum")' if name == "huber" else ""
        assert why == f"the loss `{name}`{reduced} is not known to be a mean over rows"
    for name, metric in unknown.items():
        why = rowwise.explain_results(make(metrics=["mse", metric]))
        assert why == f"the metric `{name}` is not known to be one of rows"


@pytest.mark.parametrize(
    ("axis", "spares"),
    [(None, True), (1, True), (-1, True), ((1, 2), True), (0, False), (-2, False), ([0, 1], False)],
)
def test_an_axis_that_may_be_that_of_the_rows_is_unknown(axis, spares):
    layer = runtime.keras().layers.UnitNormalization()
    layer.axis = axis
    assert rowwise._is_known_layer(layer) is spares


def test_operations_on_each_number_are_known_where_tensors_have_as_many_axes():
    keras = runtime.keras()
    given = keras.Input((6,))
    wide = keras.ops.expand_dims(given, axis=1)
    asked = {given * 2: "", given + given: "", given * np.ones(6, "float32"): "multiply"}
    for output, name in asked.items():
        assert name in rowwise.find_unknown_layer(keras.Model(given, output))
    assert "expand_dims" in rowwise.find_unknown_layer(keras.Model(given, given + wide))


@pytest.mark.parametrize(
    ("equation", "known"),
    [("ab,bc->ac", True), ("...x,xy->...y", True), ("ab,ac->bc", False), ("ab,bc->ca", False)],
)
def test_an_einsum_over_rows_is_unknown(equation, known):
    assert rowwise._keeps_rows(equation) is known


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(KINDS, "tabm"))
def test_networks_for_tables_are_known_and_rightly_so(kind):
    data = make_table("number")
    options = {"units": 8, "blocks": 2, "members": 3, "heads": 2, "rank": 3}
    model = builder.build_tabular(data, {**options, "kind": kind})
    assert not rowwise.find_unknown_layer(model)
    assert not rowwise.explain_results(model)
    found = batch_dependence.probe(model, batch_dependence.sample_of(data))
    assert found == batch_dependence.Verdict()
