import pytest
from lazy_modules import keras
from small_fits import make_dataset

from gpukeras import ModelError, SpecError
from gpukeras.models import identifiers, model_checks
from gpukeras.training import fit

pytestmark = pytest.mark.tf


def build():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, "softmax")])


@pytest.mark.parametrize(
    ("wrong", "noun", "hint"),
    [
        ({"loss": "mean_sqared_error"}, "loss", "Did you mean"),
        ({"loss": ["MeanSquared"]}, "loss", "sparse_categorical_crossentropy"),
        ({"loss": "mse", "metrics": ["acuracy"]}, "metric", 'Did you mean "accuracy"'),
        ({"loss": "mse", "metrics": {"a": ["accuracy", "auk"]}}, "metric", 'Did you mean "AUC"'),
        ({"loss": "mse", "weighted_metrics": ["what"]}, "metric", "Names are acc, "),
    ],
)
def test_a_wrong_name_is_answered_by_those_there_are(wrong, noun, hint):
    model = build()
    model.compile("sgd", **wrong)
    with pytest.raises(
        ModelError, match=f'`model` has the {noun} ".*", which Keras does not know.'
    ) as caught:
        fit.fit(model, make_dataset(), {"epochs": 1})
    assert hint in caught.value.hint


def test_a_wrong_optimizer_too():
    with pytest.raises(SpecError, match="Could not interpret optimizer") as caught:
        model_checks.compile_model(build(), {"loss": "mse", "optimizer": "adamm"})
    assert 'Did you mean "Adam"? Names are' in caught.value.hint


def test_every_name_that_is_listed_is_known():
    for kind, module in (("losses", keras.losses), ("metrics", keras.metrics)):
        names = identifiers.suggest(kind, "zzzzzz").removeprefix("Names are ").rstrip(".")
        model = build()
        for name in names.split(", "):
            model.compile("sgd", name if kind == "losses" else "mse")
            identifiers.check_names(model)
        assert len(identifiers.list_names(module)) > 20


def test_functions_and_gaps_are_no_names():
    def mine(y, predicted):
        return keras.ops.mean(y - predicted)

    model = build()
    model.compile("sgd", loss=mine, metrics=[None, "accuracy", mine])
    identifiers.check_names(model)
