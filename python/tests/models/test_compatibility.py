import pytest
from lazy_modules import keras
from rules import label_rule
from small_fits import make_dataset

from gpukeras import DataError, ModelError
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.models import compatibility
from gpukeras.training import fit

pytestmark = pytest.mark.tf


SPARSE, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"


def number(low, high, whole=True):
    return label_rule("number", minimum=low, maximum=high, whole=whole)


def dense(units, loss):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", loss)
    return model


def recipe_of(label):
    return Recipe(ArrayEncoding((4,)), label=label)


@pytest.mark.parametrize(
    ("label", "units", "loss", "error", "message"),
    [
        (number(1, 3), 3, SPARSE, DataError, "from 1 to 3.*0 to 2.*count from 1 as in R"),
        (number(0, 3), 3, SPARSE, DataError, "from 0 to 3.*0 to 2"),
        (number(-1, 2), 3, SPARSE, DataError, "from -1 to 2"),
        (number(0, 2, whole=False), 3, SPARSE, DataError, "one class a row"),
        (label_rule("class", 4, tuple("abcd")), 3, SPARSE, DataError, "from 0 to 3"),
        (label_rule("class", 3, tuple("abc")), 1, BINARY, DataError, "from 0 to 2"),
        (number(1, 2), 1, BINARY, DataError, "count from 1"),
        (label_rule("class", 3, tuple("abc")), 3, "categorical_crossentropy", ModelError, "sparse"),
        (label_rule("matrix", 2), 3, "mse", ModelError, "3 units, but `y` has 2"),
        (number(0, 9), 3, "mse", ModelError, "3 units, but `y` has 1"),
        (number(0, 2), 3, SPARSE, None, ""),
        (label_rule("class", 2, tuple("ab")), 1, BINARY, None, ""),
        (label_rule("class", 2, tuple("ab")), 2, SPARSE, None, ""),
        (label_rule("matrix", 3), 3, "mse", None, ""),
        (number(-5, 5), 1, "mse", None, ""),
    ],
)
def test_labels_against_the_output_layer(label, units, loss, error, message):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", loss)
    recipe = Recipe(ArrayEncoding((4,)), label=label)
    if error is None:
        compatibility.check_fit(model, recipe)
        return
    with pytest.raises(error, match=message):
        compatibility.check_fit(model, recipe)


def test_a_loss_is_known_as_an_object_and_as_a_function_too():
    losses = keras.losses
    for loss in (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        losses.sparse_categorical_crossentropy,
    ):
        with pytest.raises(DataError, match="count from 1"):
            compatibility.check_fit(dense(3, loss), recipe_of(number(1, 3)))


def test_an_unbuilt_model_is_left_to_keras():
    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("sgd", SPARSE)
    compatibility.check_fit(model, make_dataset().recipe)
    fit.fit(model, make_dataset(), {"epochs": 1})


def test_a_model_that_takes_text_is_told():
    words = keras.layers.StringLookup(vocabulary=["a"], output_mode="one_hot")
    entry = keras.Input((1,), dtype="string", name="word")
    model = keras.Model(entry, keras.layers.Dense(1)(words(entry)))
    model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="The input `word` of `model` takes text"):
        compatibility.check_fit(model, Recipe(ArrayEncoding((1,)), label=number(0, 1)))
