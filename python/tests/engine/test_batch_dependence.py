"""Results are those of Keras in its own batches, whatever in a model depends on them."""

import numpy as np
import pytest
from nightly import few

from gpukeras.accelerate.rows import CallRows, dataset_of
from gpukeras.core.errors import ModelError
from gpukeras.engine import batch_dependence, rowwise
from gpukeras.engine.batch_dependence import Sample, explain_outputs, explain_results, sample_of
from gpukeras.engine.predict import predict_rows
from gpukeras.training import evaluate, fit

pytestmark = pytest.mark.tf

KNOWN = [
    "layers of Keras'",
    "batch normalisation",
    "penalties of outputs",
    "a bidirectional layer",
    "steps masked within",
    "a residual",
    "scores of classes",
]
LOOKED_AT = ["a lambda of each row", "training within"]
MIXED = [
    "a lambda",
    "operations of the graph",
    "an activation",
    "a function of a layer",
    "layers at each time",
    "a model in a model",
    "softmax over rows",
    "unit norm over rows",
    "weights of 0 behind",
    "several inputs and outputs",
    "a counter",
    "random numbers",
    "a predict step",
]
BY_BATCH = [
    "a metric of the largest",
    "a recall without positives",
    "a loss as metric",
    "a loss of one's own",
    "a sum",
    "a mean by weights",
    "masked steps",
    "classes left out",
    "hinge of 0 and 1",
    "hinge as metric",
    "dice",
    "a layer that adds to the loss",
    "a penalty of one's own",
    "an output without axis",
    "a test step",
]
STATEFUL = ["a state"]
NAMES = [*KNOWN, *LOOKED_AT, *MIXED, *BY_BATCH, *STATEFUL]
TRAINED = ["a lambda", "a metric of the largest", "masked steps", "hinge of 0 and 1", "a counter"]


def make(name):
    from batched import make as made  # imports Keras

    return made(name)


def as_data(model, x, y, weights, **options):
    return dataset_of(CallRows(x, y, weights), model, {"shuffle": False, **options})


def test_the_table_is_whole():
    import batched

    assert sorted(NAMES) == sorted({**batched.CASES, **batched.TENSORFLOW})


@pytest.mark.varies
@pytest.mark.parametrize("name", NAMES)
def test_evaluate_and_predict_give_what_keras_gives_in_its_batches(name):
    model, x, y, weights = make(name)
    size = 8 if name in STATEFUL else 32
    known = model.evaluate(
        x, y, sample_weight=weights, batch_size=size, verbose=0, return_dict=True
    )
    outputs = model.predict(x, batch_size=size, verbose=0)
    ours = make(name)[0]
    data = as_data(ours, x, y, weights)
    found = evaluate.evaluate_logs(ours, data)
    compare(found.logs, known)
    assert bool(found.note) == (name in BY_BATCH or name in MIXED[:-1])
    compare(predict_rows(ours, data.sources[0], data.recipe), outputs)


def compare(found, known):
    import keras

    keras.tree.assert_same_structure(found, known)
    for one, two in zip(keras.tree.flatten(found), keras.tree.flatten(known), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(TRAINED, *TRAINED[:2]))
def test_validation_gives_what_keras_gives(name):
    model, x, y, weights = make(name)
    given = {"sample_weight": weights, "epochs": 2, "shuffle": False, "verbose": 0}
    held = [x[:50], y[:50], *([] if weights is None else [weights[:50]])]
    known = model.fit(x, y, batch_size=20, validation_data=tuple(held), **given).history
    ours = make(name)[0]
    data = as_data(ours, x, y, weights, batch_size=20)
    rows = as_data(ours, *held, *([None] if weights is None else []))
    report = fit.fit(ours, data, {"epochs": 2, "engine": "graph_loop"}, validation=rows)
    for key, values in known.items():
        np.testing.assert_allclose(report.history[key], values, rtol=1e-4, err_msg=key)
    (note,) = [one for one in report.notes if "Validation" in one]
    assert note.startswith("Validation rows are evaluated in batches of 20, as by Keras: ")


# What is decided, and how ------------------------------------------------------------------------


def test_what_is_known_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(batch_dependence, "probe", None)  # would be an error, and so a reason
    for name in KNOWN:
        model, x, y, weights = make(name)
        model.build(x.shape) if not model.built else None
        assert not rowwise.find_unknown_layer(model), name
        assert not explain_results(model, sample_of(as_data(model, x, y, weights))), name


@pytest.mark.parametrize("name", ["a lambda", "a counter", "random numbers", "weights of 0 behind"])
def test_a_look_leaves_the_model_as_it_was_and_happens_once(name, monkeypatch):
    model, x, _, _ = make(name)
    before = [np.array(one) for one in model.variables]
    state = np.random.get_state()[1].copy()
    sample = Sample(len(x), lambda places: x[places])
    assert explain_outputs(model, sample)
    for one, kept in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(one, kept)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    monkeypatch.setattr(batch_dependence, "probe", None)
    assert explain_outputs(model, sample) in (batch_dependence.MIXES, batch_dependence.CHANGES)


def test_one_batch_of_keras_needs_no_look(monkeypatch):
    monkeypatch.setattr(batch_dependence, "probe", None)
    model, x, _, _ = make("a lambda")
    assert not explain_outputs(model, Sample(32, lambda places: x[places]))
    assert explain_outputs(model, Sample(33, lambda places: x[places]))


def test_another_activation_is_another_look():
    import keras

    model, x, _, _ = make("a function of a layer")
    sample = Sample(len(x), lambda places: x[places])
    assert explain_outputs(model, sample) == batch_dependence.MIXES
    model.layers[0].activation = keras.activations.relu
    assert not explain_outputs(model, sample)


def test_what_fails_in_the_look_keeps_keras_batches():
    model, x, _, _ = make("a lambda")

    def take(places):
        raise RuntimeError("no rows")

    why = explain_outputs(model, Sample(len(x), take))
    assert why.startswith("the layer `lambda")
    assert why.endswith("could not be called on rows in two sizes of batches")


# Who asks ----------------------------------------------------------------------------------------


def test_a_model_that_mixes_rows_is_not_stacked():
    from gpukeras.many.plan import find_refusal

    for name, why in (("a lambda", batch_dependence.MIXES), ("layers of Keras'", "")):
        model, x, y, weights = make(name)
        assert find_refusal(model, as_data(model, x, y, weights)) == why


def test_attributions_refuse_and_importance_predicts_each_variation_in_keras_batches():
    from gpukeras.explain import gradients
    from gpukeras.explain.varied import Variation, open_explained

    model, x, y, weights = make("a lambda")
    data = as_data(model, x, y, weights)
    with pytest.raises(ModelError, match="has no attributions of its own, because what the model"):
        gradients.attribute(model, data=data)
    explained = open_explained(model, data, "all")
    varied = [Variation(np.array([0]), np.array([value], np.float32)) for value in (1.0, -2.0)]
    for variation, outputs in zip(varied, explained.predict(varied), strict=True):
        rows = x.copy()
        rows[:, 0] = variation.values
        np.testing.assert_allclose(outputs, model.predict(rows, verbose=0), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a metric of the largest", "hinge of 0 and 1"])
def test_scores_of_importance_are_those_of_evaluate(name):
    from gpukeras.explain.scoring import open_scorer

    model, x, y, weights = make(name)
    known = model.evaluate(x, y, verbose=0, return_dict=True)
    data = as_data(model, x, y, weights)
    outputs = model.predict(x, verbose=0)
    for metric, value in known.items():
        with open_scorer(model, data, "all", metric) as scorer:
            assert scorer.score(outputs) == pytest.approx(value, rel=1e-4)
