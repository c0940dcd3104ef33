import numpy as np
import pytest
from explained_frames import FRAME, LABELS, encode_frame, fit_frame

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe.multi_output import ClassWeights
from gpukeras.explain import effects, gradients
from gpukeras.explain.effects import measure_effects
from gpukeras.models import mlp
from gpukeras.models.calibration import Calibration, tie_calibration
from gpukeras.training import fit

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def fitted():
    return fit_frame()


def predict_at(model, data, name, value):
    """Keras' own predictions where all rows have one value of a raw column, or each its own."""
    columns = [
        {**one, "values": np.broadcast_to(np.asarray(value, one["values"].dtype), 60)}
        if one["name"] == name
        else one
        for one in FRAME
    ]
    return model.predict(encode_frame(columns, data.recipe).arrays[0], verbose=0)[:, 0]


def test_partial_dependence_is_the_mean_prediction_at_each_value(fitted):
    found = measure_effects(*fitted, grid=4, individual=3)
    by_name = {one.column: one for one in found.columns}
    assert list(by_name) == ["a", "kind", "b", "flag"]
    a = FRAME[0]["values"]
    np.testing.assert_allclose(by_name["a"].values, np.linspace(a.min(), a.max(), 4), rtol=1e-6)
    assert by_name["kind"].levels == ("x", "y", "z")
    np.testing.assert_allclose(by_name["flag"].values, [0, 1], atol=1e-12)
    np.testing.assert_array_equal(by_name["kind"].counts, np.bincount(FRAME[1]["values"])[1:])
    for name, one in by_name.items():
        asked = one.values if len(one.values) else [1, 2, 3]
        each = np.array([predict_at(*fitted, name, value) for value in asked])
        np.testing.assert_allclose(one.effects[:, 0], each.mean(1), rtol=1e-6)
        rows = np.array(found.individual) - 1
        np.testing.assert_allclose(one.individual[:, :, 0], each[:, rows].T, rtol=2e-6)


def test_new_rows_have_the_effects_of_a_dataset(fitted):
    model, data = fitted
    (one,) = measure_effects(model, data, columns="b", grid=3).columns
    rows = {"kind": "columns", "columns": FRAME}
    (other,) = measure_effects(model, features=rows, columns="b", grid=3).columns
    np.testing.assert_array_equal(other.effects, one.effects)


def test_curves_of_rows_have_the_numbers_of_the_users_rows():
    values = FRAME[0]["values"].copy()
    values[::3] = np.nan
    rows = {"kind": "columns", "columns": [{**FRAME[0], "values": values}, FRAME[2]]}
    labels = {"kind": "numeric", "values": LABELS}
    options = {"na": "drop", "batch_size": 20, "validation": 0.4}
    data = map_dataset.build_dataset(rows, options, labels)
    model = mlp.build_mlp(data, {"units": [3]})
    fit.fit(model, data, {"epochs": 1})
    found = measure_effects(model, features=rows, columns="b", grid=2, individual=40)
    numbers = np.array(found.individual)
    np.testing.assert_array_equal(numbers, 1 + np.flatnonzero(~np.isnan(values)))
    found = measure_effects(model, data, columns="b", part="validation", grid=2, individual=40)
    np.testing.assert_array_equal(found.individual, data.validation_rows + 1)
    rows["columns"][0]["values"] = np.full_like(values, np.nan)
    with pytest.raises(DataError, match="has no row without a missing value"):
        measure_effects(model, features=rows)


def test_accumulated_local_effects_are_those_of_raw_columns(fitted):
    (found,) = measure_effects(*fitted, columns="a", kind="ale", grid=5).columns
    a = FRAME[0]["values"]
    edges = np.concatenate([[a.min()], np.quantile(a, np.arange(1, 6) / 5, method="inverted_cdf")])
    np.testing.assert_allclose(found.values, edges, rtol=1e-6)
    place = np.clip(np.searchsorted(edges, a) - 1, 0, 4)
    moved = predict_at(*fitted, "a", edges[place + 1]) - predict_at(*fitted, "a", edges[place])
    steps = [moved[place == interval].mean() for interval in range(5)]
    curve = np.concatenate([[0], np.cumsum(steps)])
    middles = ((curve[1:] + curve[:-1]) / 2)[place]
    np.testing.assert_allclose(found.effects[:, 0], curve - middles.mean(), atol=2e-6)
    assert found.counts.tolist() == [0, *np.bincount(place)]


@pytest.mark.parametrize("given", ["dataset", "new rows"])
@pytest.mark.parametrize("kind", effects.KINDS)
def test_a_row_of_weight_n_counts_as_n_rows(fitted, kind, given):
    model, data = fitted
    times = np.random.default_rng(5).integers(0, 4, 60)
    rounded = [{**one, "values": np.round(one["values"])} for one in FRAME if one["name"] != "kind"]
    frame = [rounded[0], FRAME[1], *rounded[1:]]  # of few values, whose intervals are the same
    copies = [{**one, "values": np.repeat(one["values"], times)} for one in frame]
    several = {"kind": "columns", "columns": copies}
    names = [one["name"] for one in frame if kind != "ale" or one["name"] in ("a", "b")]
    options = {"columns": names, "kind": kind, "grid": 50}
    if given == "dataset":
        weighed = encode_frame(frame, data.recipe, weights=times.astype(float))
        found = measure_effects(model, weighed, **options)
    else:
        rows = {"kind": "columns", "columns": frame}
        found = measure_effects(model, features=rows, weights=times.astype(float), **options)
    expected = measure_effects(model, features=several, **options)
    plain = measure_effects(model, features={"kind": "columns", "columns": frame}, **options)
    assert (found.weighted, expected.weighted) == (True, False)
    assert found.rows == np.count_nonzero(times)
    for one, other, unweighed in zip(found.columns, expected.columns, plain.columns, strict=True):
        np.testing.assert_allclose(one.values, other.values)
        np.testing.assert_allclose(one.effects, other.effects, atol=2e-6)
        same = one.effects.shape == unweighed.effects.shape
        assert not same or np.abs(one.effects - unweighed.effects).max() > 1e-3


def test_weights_of_classes_weigh_no_effects_and_rows_need_some_weight(fitted):
    from small_fits import make_dataset, make_model

    data = make_dataset(50)
    data.sources = (*data.sources, data.sources[1])
    data.class_weights = ClassWeights("balanced", None)
    assert not measure_effects(make_model(), data, columns=["2"], grid=3).weighted
    rows = {"kind": "columns", "columns": FRAME}
    with pytest.raises(DataError, match="no rows with a weight above 0"):
        measure_effects(fitted[0], features=rows, weights=np.zeros(60))
    with pytest.raises(DataError, match="`weights` has 59"):
        measure_effects(fitted[0], features=rows, weights=np.ones(59))


def test_effects_of_a_linear_function_are_its_slope():
    # f(x, z) = 3 x, where z follows x: an average over the data's own rows would mix them.
    x = np.sort(np.random.default_rng(1).normal(size=200))
    edges, places = effects.find_intervals(x, 10)
    moved = 3 * (edges[places + 1] - edges[places])[:, None]
    curve = effects.accumulate(moved, places, np.bincount(places))[:, 0]
    np.testing.assert_allclose(np.diff(curve), 3 * np.diff(edges))
    middles = (curve[1:] + curve[:-1]) / 2
    assert abs(np.mean(middles[places])) < 1e-12


def test_intervals_of_few_values_are_as_many_as_they_need():
    edges, places = effects.find_intervals(np.array([1.0, 1, 1, 2, 5]), 10)
    assert (edges.tolist(), places.tolist()) == ([1, 2, 5], [0, 0, 0, 0, 1])
    edges, places = effects.find_intervals(np.ones(3), 4)
    assert (edges.tolist(), places.tolist()) == ([1], [0, 0, 0])


def test_a_constant_column_has_no_effect(fitted):
    model, data = fitted
    same = [
        {**one, "values": one["values"] * 0 + 1.5} if one["name"] == "b" else one for one in FRAME
    ]
    constant = encode_frame(same, data.recipe)
    (found,) = measure_effects(model, constant, columns="b", kind="ale").columns
    assert found.effects.tolist() == [[0]]


def test_outputs_are_named_by_their_classes():
    from small_fits import make_dataset, make_model

    found = measure_effects(make_model(), make_dataset(50), columns=["2"], grid=3)
    assert found.columns[0].outputs == ("a", "b", "c")
    np.testing.assert_allclose(found.columns[0].effects.sum(1), 1, rtol=1e-6)


def test_effects_and_attributions_of_a_calibrated_model():
    from small_fits import make_dataset, make_model

    model, data = make_model(), make_dataset(50)
    (before,) = measure_effects(model, data, columns="2", grid=3).columns
    attributed = gradients.attribute(model, data=data)
    assert attributed.notes == ()
    calibration = Calibration("classes", 50, reading="softmax", temperature=2.0)
    tie_calibration(model, calibration)
    (found,) = measure_effects(model, data, columns="2", grid=3, individual=50).columns
    (ale,) = measure_effects(model, data, columns="2", kind="ale").columns
    assert not np.allclose(found.effects, before.effects, atol=1e-3)
    rows = data.sources[0].gather(slice(None))
    for place, value in enumerate(found.values):
        moved = rows.copy()
        moved[:, 1] = value
        logits = np.log(model.predict(moved, verbose=0)) / 2
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(found.individual[:, place], shares, rtol=1e-4)
        np.testing.assert_allclose(found.effects[place], shares.mean(0), rtol=1e-4)
    np.testing.assert_allclose(ale.effects.sum(1), 0, atol=1e-5)
    again = gradients.attribute(model, data=data)
    np.testing.assert_array_equal(again.outputs, attributed.outputs)
    assert again.notes == (gradients.BEFORE_CALIBRATION,)


def test_what_has_no_curve_is_refused_by_name(fitted):
    with pytest.raises(SpecError, match="Column `kind` has no curve: `ale` needs numbers"):
        measure_effects(*fitted, columns=["a", "kind"], kind="ale")
    with pytest.raises(SpecError, match="`columns` names `c`, which is no column that `model` was"):
        measure_effects(*fitted, columns="c")
    with pytest.raises(SpecError, match="accumulated local effects are differences within"):
        measure_effects(*fitted, kind="ale", individual=3)
    with pytest.raises(ModelError, match="`model` has several outputs, and one is explained at"):
        effects.read_output({"a": np.zeros(3), "b": np.zeros(3)})
