import numpy as np
import pytest
from familied import LEVELS, ROWS, dataset, features, labels_of, model_of
from grouped import array, inputs
from nightly import few

from gpukeras.compression import distillation
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.data import builder
from gpukeras.models import mlp
from gpukeras.models.families.build import explain_labels, find_offset, settle_family
from gpukeras.models.families.keras_classes import family_layer
from gpukeras.models.tabular.builder import build_tabular
from gpukeras.training import fit, predict

pytestmark = pytest.mark.tf


def with_offset(name, shift=3.0, labels=None, inputs=None):
    """Data whose last input is an offset, as a formula with offset() makes it."""
    x, rng = features(), np.random.default_rng(2)
    values = {"a": x[:, 0], "b": x[:, 1], "o": shift + rng.normal(size=ROWS)}
    columns = [{"name": key, "kind": "numeric", "values": each} for key, each in values.items()]
    columns[-1]["offset"] = True
    groups = inputs or [{"name": "features", "columns": ["a", "b"]}]
    groups = [*groups, {"name": "offset", "columns": ["o"]}]
    given = {"kind": "columns", "columns": columns, "groups": groups}
    options = {"batch_size": ROWS, "scale": False}
    return builder.assemble(given, options, labels or labels_of(name))


def test_training_starts_at_the_mean_of_the_labels():
    for name, link in {"poisson": None, "gamma": "inverse"}.items():
        mean = labels_of(name)["values"].mean()
        assert settle_family(dataset(name), name).center == pytest.approx(mean, rel=1e-6)
        model = model_of(name, family={"name": name, "link": link})
        model.layers[0].kernel.assign(np.zeros((2, 1)))
        found = predict.predict(model, data=dataset(name))["values"]
        np.testing.assert_allclose(found, mean, rtol=1e-4)
    trials = labels_of("trials")["values"]
    family = settle_family(dataset("trials"), "binomial")
    assert family.columns == 2
    assert family.center == pytest.approx(trials[:, 0].sum() / trials.sum(), rel=1e-6)


@pytest.mark.varies
@pytest.mark.parametrize(
    "name", few(["poisson", "gaussian", "ordinal", "quantile"], "poisson", "ordinal")
)
def test_an_offset_is_added_to_the_linear_predictor(name):
    data = with_offset(name)
    model = mlp.build_mlp(data, {"units": [4], "family": name})
    shifts = np.asarray(data.sources[0].gather(slice(ROWS)))[:, 2]
    layer = family_layer(model)
    assert layer.family.shift == pytest.approx(shifts.mean(), rel=1e-5)
    inner = [one for one in model.layers if type(one).__name__ == "Dense"]
    assert inner[0].kernel.shape[0] == 2  # the offset goes through no weight
    given = {"features": features()[:5].astype("float32"), "offset": np.zeros((5, 1), "float32")}
    base = model.predict(given, verbose=0)
    more = model.predict({**given, "offset": np.full((5, 1), 0.5, "float32")}, verbose=0)
    expected = {"poisson": base * np.exp(0.5), "gaussian": base + 0.5, "quantile": base + 0.5}
    if name in expected:
        np.testing.assert_allclose(more, expected[name], rtol=1e-5, atol=1e-5)
    else:
        assert (more[:, 0] < base[:, 0]).all()
    report = fit.fit(model, data, {"epochs": 2})
    assert np.isfinite(report.history["loss"]).all()


def test_an_offset_stands_beside_several_inputs():
    inputs = [{"name": "one", "columns": ["a"]}, {"name": "two", "columns": ["b"]}]
    data = with_offset("poisson", inputs=inputs)
    assert find_offset(data).name == "offset"
    for units in ([], [3]):
        model = mlp.build_mlp(data, {"units": units, "family": "poisson"})
        assert [tensor.name for tensor in model.inputs] == ["one", "two", "offset"]


def test_an_input_that_is_called_offset_is_none():
    columns = [{"name": name, "kind": "numeric", "values": features()[:, 0]} for name in "ab"]
    groups = [{"name": "x", "columns": ["a"]}, {"name": "offset", "columns": ["b"]}]
    given = {"kind": "columns", "columns": columns, "groups": groups}
    data = builder.assemble(given, {"batch_size": ROWS}, labels_of("gaussian"))
    assert find_offset(data) is None
    assert settle_family(data, None) is None
    arrays = inputs(x=array(features()), offset=array(features()[:, :1]))
    data = builder.assemble(arrays, {"batch_size": ROWS}, labels_of("gaussian"))
    assert find_offset(data) is None


def test_an_offset_without_a_family_is_gaussian_or_binomial():
    assert settle_family(with_offset("gaussian"), None).name == "gaussian"
    assert settle_family(with_offset("binomial"), None).name == "binomial"
    assert settle_family(dataset("gaussian"), None) is None
    with pytest.raises(SpecError, match="`family` must be given for labels of this kind"):
        settle_family(with_offset("ordinal"), None)
    with pytest.raises(SpecError, match="An offset has no effect in the family"):
        settle_family(with_offset("multinomial"), "multinomial")


def test_survival_times_choose_their_family_or_are_refused():
    values = np.column_stack([np.arange(1.0, ROWS + 1), np.arange(ROWS) % 2])
    times = {"kind": "matrix", "values": values, "names": ["time", "status"], "survival": True}
    data = dataset(times)
    assert settle_family(data, None).name == "cox"
    assert explain_labels(data) == ""
    assert settle_family(data, "discrete_time").name == "discrete_time"
    assert "cox" in explain_labels(dataset({**times, "survival": False}))
    made = build_tabular(data, {"kind": "mlp", "units": 2, "blocks": 1})
    assert family_layer(made).family.name == "cox"
    rows = {"kind": "array", "values": np.zeros((ROWS, 2))}
    outputs = [{"name": name, "labels": times} for name in ("one", "other")]
    several = builder.assemble(rows, {}, {"kind": "outputs", "outputs": outputs})
    with pytest.raises(DataError, match="need a model with a family, and a single output"):
        mlp.build_mlp(several, {})


@pytest.mark.slow
def test_two_levels_are_one_trial_or_two_classes():
    labels = {"kind": "factor", "values": 1 + np.arange(ROWS) % 2, "levels": ["no", "yes"]}
    for name, columns in {"binomial": 1, "multinomial": 2}.items():
        model = model_of(name, dataset(labels))
        assert family_layer(model).family.columns == columns
        assert model.output_shape == (None, 2)
        found = predict.predict(model, data=dataset(labels), type="class")
        assert found["levels"] == ["no", "yes"]
        assert fit.fit(model, dataset(labels), {"epochs": 1}).history["accuracy"][0] > 0.2


def test_a_likelihood_is_not_distilled():
    model, data = model_of("gamma", units=[4]), dataset("gamma")
    with pytest.raises(ModelError, match="`teacher` has the likelihood of a family as its loss"):
        distillation.distill(model, data, {"epochs": 1})


def test_labels_are_checked_when_the_model_is_built():
    with pytest.raises(DataError, match="`y` must hold numbers above 0"):
        model_of("gamma", dataset("gaussian"))


def test_mixed_classes_have_no_family():
    images = {"kind": "array", "values": np.zeros((6, 4, 4, 1))}
    labels = {"kind": "factor", "values": np.array([1, 2, 3] * 2), "levels": LEVELS}
    data = builder.assemble(images, {"batch_size": 3}, labels, augment={"mixup": 0.2})
    with pytest.raises(SpecError, match="`family` and `mixup` cannot be combined"):
        mlp.build_mlp(data, {"family": "ordinal"})
