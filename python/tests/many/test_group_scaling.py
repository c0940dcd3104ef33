"""A group's model is that of a dataset of the group alone."""

import numpy as np
import pytest
from stacked import fit_many

from gpukeras.core.errors import DataError, SpecError
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.models.mlp import build_mlp

pytestmark = pytest.mark.tf

SCALES, CENTERS, NAMES = [1.0, 100.0, 0.1], [0.0, 500.0, -3.0], ["a", "b", "c"]
CODES = np.repeat([0, 1, 2], [24, 40, 32])


def frame(rows):
    """Numbers whose scale and labels differ by group, a category, and missing values."""
    rng = np.random.default_rng(1)
    x = (
        rng.normal(size=(96, 2)) * np.take(SCALES, CODES)[:, None]
        + np.take(CENTERS, CODES)[:, None]
    )
    levels = rng.integers(1, 3, 96)
    y = x.sum(axis=1) * 3 + np.take(SCALES, CODES) * rng.normal(size=96)
    columns = [
        {"name": "u", "kind": "numeric", "values": x[rows, 0]},
        {"name": "f", "kind": "factor", "values": levels[rows], "levels": ["p", "q"]},
        {"name": "v", "kind": "numeric", "values": x[rows, 1]},
    ]
    labels = {"kind": "numeric", "values": y[rows], "levels": []}
    return {"kind": "columns", "columns": columns}, labels, x[rows]


def dataset(rows, array=False):
    features, labels, x = frame(rows)
    if array:
        features = {"kind": "array", "values": np.asfortranarray(x)}
    return build_dataset(features, {"batch_size": 8, "seed": 1, "scale": True}, labels)


def mlp(data):
    return build_mlp(data, {"units": [4], "seed": 1})


@pytest.fixture(scope="module", params=[False, True], ids=["columns", "array"])
def both(request):
    data = dataset(np.arange(96), request.param)
    return request.param, fit_many([mlp(data)], data, groups={"names": NAMES, "codes": CODES})


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_group_trains_as_by_fit_alone(both, code):
    from gpukeras.many.ensemble import predict_many
    from gpukeras.training.fit import fit
    from gpukeras.training.predict import predict

    array, fits = both
    assert len(fits.plan.stacks) == 1
    rows = np.flatnonzero(code == CODES)
    own = dataset(rows, array)
    model = mlp(own)
    fit(model, own, {"epochs": 3, "engine": "graph_loop"})
    for one, other in zip(fits.model(code + 1).get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
    features, _, x = frame(rows)
    features = {"kind": "array", "values": x} if array else features
    expected = predict(model, features)["values"]
    near = {"atol": 1e-3 * SCALES[code], "rtol": 1e-4}
    np.testing.assert_allclose(predict(fits.model(code + 1), features)["values"], expected, **near)
    found = predict_many(fits, features, groups=[NAMES[code]] * len(rows))["values"]
    np.testing.assert_allclose(found, expected, **near)


@pytest.mark.varies
def test_rows_want_the_model_of_their_own_group(both):
    from gpukeras.many.ensemble import predict_many
    from gpukeras.training.predict import predict

    array, fits = both
    rows = np.random.default_rng(2).permutation(96)[:30]
    features, _, x = frame(rows)
    features = {"kind": "array", "values": x} if array else features
    names = [NAMES[code] for code in CODES[rows]]
    record = predict_many(fits, features, groups=names)
    each = np.stack([predict(fits.model(number), features)["values"] for number in (1, 2, 3)])
    expected = each[CODES[rows], np.arange(30)]
    np.testing.assert_allclose(record["values"], expected, rtol=1e-4, atol=1e-3)
    whole = predict_many(fits, data=dataset(np.arange(96), array), groups=np.take(NAMES, CODES))
    np.testing.assert_allclose(np.asarray(whole["values"])[rows], record["values"], rtol=1e-4)
    with pytest.raises(DataError, match="has 3 rows of 2 groups without a trained model"):
        predict_many(fits, features, groups=["z", None, "z", *names[3:]])
    with pytest.raises(SpecError, match="unknown to which group rows belong"):
        predict_many(fits, features)
    with pytest.raises(SpecError, match="`group` has 29 values, and `newdata` has 30 rows"):
        predict_many(fits, features, groups=names[1:])


def tabular(data):
    from gpukeras.models.tabular.builder import build_tabular

    sizes = {"kind": "mlp", "units": 4, "blocks": 1, "numeric_embeddings": "none", "dropout": 0.0}
    return build_tabular(data, {**sizes, "seed": 1})


@pytest.mark.slow
def test_a_network_for_tables_scales_by_the_quantiles_of_the_group():
    from gpukeras.many.group_scaling import find_table

    data = dataset(np.arange(96))
    fits = fit_many([tabular(data)], data, groups={"names": NAMES, "codes": CODES}, epochs=1)
    for code in range(3):
        rows = np.flatnonzero(code == CODES)
        own = dataset(rows)
        expected = find_table(tabular(own))(own.sources[0].gather(slice(None)))
        found = find_table(fits.model(code + 1))(fits.data.sources[0].gather(rows))
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=2e-4)


def test_kinds_of_models_that_scale_otherwise_are_noted():
    data = dataset(np.arange(96))
    models = [tabular(data), mlp(data)]
    fits = fit_many(models, data, groups={"names": NAMES, "codes": CODES}, epochs=1)
    assert (fits.scaling, len(fits.notes)) == (None, 1)
    assert fits.notes[0].startswith("Numbers are scaled by all groups, as a gpu_tabular()")


def far_from_zero(rows, array):
    """Numbers of a deviation of 1 at 1,000,000, with labels that depend on them."""
    away = np.random.default_rng(1).normal(size=(96, 2))
    x = away + np.take([1e6, 1e6 + 5, 1e6 - 3], CODES)[:, None]
    columns = [
        {"name": name, "kind": "numeric", "values": x[rows, place]}
        for place, name in enumerate("uv")
    ]
    features = {"kind": "columns", "columns": columns}
    if array:
        features = {"kind": "array", "values": np.asfortranarray(x[rows])}
    labels = {"kind": "numeric", "values": away.sum(axis=1)[rows], "levels": []}
    return build_dataset(features, {"batch_size": 8, "seed": 1, "scale": True}, labels)


@pytest.mark.varies
@pytest.mark.parametrize("array", [False, True], ids=["columns", "array"])
def test_groups_far_from_zero_train_as_by_fit_alone(array):
    from gpukeras.training.fit import fit

    data = far_from_zero(np.arange(96), array)
    fits = fit_many([mlp(data)], data, groups={"names": NAMES, "codes": CODES})
    assert fits.notes == ()
    for code in range(3):
        rows = np.flatnonzero(code == CODES)
        own = far_from_zero(rows, array)
        encoded = own.sources[0].gather(slice(None))
        np.testing.assert_allclose(fits.data.sources[0].gather(rows), encoded, atol=2e-6)
        model = mlp(own)
        fit(model, own, {"epochs": 3, "engine": "graph_loop"})
        for one, other in zip(fits.model(code + 1).get_weights(), model.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_groups_that_lose_digits_are_named():
    x = np.random.default_rng(0).normal(size=(96, 1)) * np.take([1e-4, 1.0, 1.0], CODES)[:, None]
    x += np.take([100.0, 0.0, 1.0], CODES)[:, None]
    labels = {"kind": "numeric", "values": x[:, 0] + 0.5, "levels": []}
    features = {"kind": "array", "values": np.asfortranarray(x)}
    data = build_dataset(features, {"batch_size": 8, "seed": 1, "scale": True}, labels)
    fits = fit_many([mlp(data)], data, groups={"names": NAMES, "codes": CODES}, epochs=1)
    assert len(fits.notes) == 1
    assert fits.notes[0].startswith('"a" varies so little beside other groups that numbers lost')
