import numpy as np
import pytest
from familied import LEVELS, ROWS, dataset, labels_of, model_of

from gpukeras.backend import runtime
from gpukeras.core.errors import ModelError, SpecError
from gpukeras.models.families.predictions import check_type
from gpukeras.models.families.spec import Family
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    ("family", "kind", "message"),
    [
        (None, "parameters", "needs a model with a family, and `model` has none"),
        (Family("poisson", "log"), "survival", 'families "cox", "discrete_time" have it'),
        (Family("poisson", "log"), "time", 'families "cox", "discrete_time" have it'),
        (Family("poisson", "log"), "class", 'is not known for a model of the family "poisson"'),
        (Family("ordinal", "logit"), "quantile", "is not known for a model of the family"),
        (Family("gaussian", "identity"), "quantile", "is not known for a model of the family"),
    ],
)
def test_what_a_family_does_not_have_is_refused(family, kind, message):
    with pytest.raises(SpecError, match=message):
        check_type(kind, family)
    check_type("class", None)
    check_type("quantile", Family("gaussian", "identity", "rows"))


def test_curves_of_cox_need_a_training_and_times_are_not_negative():
    data = dataset("cox")
    model = model_of("cox", data)
    for kind in ("survival", "time"):
        with pytest.raises(ModelError, match="`model` has no baseline hazard: gpu_fit"):
            predict.predict(model, data=data, type=kind)
    with pytest.raises(SpecError, match="`times` must be a number of at least 0"):
        predict.predict(model_of("discrete_time"), data=data, type="survival", times=[-1.0])


def test_a_training_that_fails_leaves_no_curves_of_the_weights_before():
    data = dataset("cox")
    model = model_of("cox", data)
    fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"})
    predict.predict(model, data=data, type="survival")

    def fail(epoch, logs):
        raise ZeroDivisionError

    failing = runtime.keras().callbacks.LambdaCallback(on_epoch_end=fail)
    with pytest.raises(ZeroDivisionError):
        fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"}, callbacks=[failing])
    with pytest.raises(ModelError, match="`model` has no baseline hazard"):
        predict.predict(model, data=data, type="survival")
    fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"})
    predict.predict(model, data=data, type="survival")


@pytest.mark.varies
@pytest.mark.parametrize(
    ("name", "response", "parameters"),
    [
        ("gamma", (ROWS,), ["mean", "shape"]),
        ("quantile", (ROWS, 3), ["q0.1", "q0.5", "q0.9"]),
        ("trials", (ROWS,), ["failure", "success"]),
        ("ordinal", (ROWS, 3), LEVELS),
        ("multi_label", (ROWS, 3), ["class1", "class2", "class3"]),
    ],
)
def test_predictions_are_the_mean_or_the_parameters(name, response, parameters):
    model, data = model_of(name), dataset(name)
    found = predict.predict(model, data=data)
    assert found["values"].shape == response
    assert found["names"] == (parameters if len(response) == 2 else [])
    own = predict.predict(model, data=data, type="parameters")
    assert own["names"] == parameters
    x = np.asarray(data.sources[0].gather(slice(ROWS)))
    np.testing.assert_allclose(own["values"], model.predict(x, verbose=0), rtol=1e-5)


@pytest.mark.varies
@pytest.mark.parametrize("name", ["binomial", "ordinal", "multinomial", "multi_label"])
def test_classes_are_the_most_probable(name):
    model, data = model_of(name), dataset(name)
    raw = predict.predict(model, data=data, type="parameters")["values"]
    found = predict.predict(model, data=data, type="class")["values"]
    expected = raw > 0.5 if name == "multi_label" else raw.argmax(axis=1) + (name != "binomial")
    np.testing.assert_array_equal(found, expected)
    if name != "multi_label":
        right = (found == labels_of(name)["values"]).mean()
        measured = evaluate.evaluate(model, data)["metrics"]["accuracy"]
        assert measured == pytest.approx(right, rel=1e-5)
