import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparse_slots import slots

from gpukeras import DataError
from gpukeras.data import arrays
from gpukeras.data.dataset import map_dataset
from gpukeras.data.dataset.chunks import Chunk, _Array, encode_chunk
from gpukeras.data.reader import registry
from gpukeras.data.recipe import targets
from gpukeras.data.recipe.recipe import ArrayEncoding, Input, InputsEncoding, Recipe
from gpukeras.data.recipe.serialization import check_order
from gpukeras.models import model_recipes

X = np.arange(12.0).reshape(4, 3)
NAMES = ("a", "b", "c")


def array(values, names=()):
    return {"kind": "array", "values": np.asarray(values, np.float64), "names": list(names)}


@pytest.mark.parametrize(
    ("wanted", "found", "order"),
    [
        (NAMES, NAMES, None),
        (NAMES, (), None),
        ((), NAMES, None),
        (NAMES, ("c", "a", "b"), (1, 2, 0)),
        (NAMES, ("z", "a", "b", "c"), (1, 2, 3)),
        (NAMES, ("a", "b", "c", ""), (0, 1, 2)),
        (("a", "a"), ("b", "a"), None),  # what training had tells no columns apart
        (("a", ""), ("b", "a"), None),
    ],
)
def test_columns_are_found_by_their_names(wanted, found, order):
    assert arrays.order_names(wanted, found, "x") == order


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (("a", "b", "d"), "`x` lacks the column `c` that the model was trained on"),
        (("a", "b", "c", "c"), "`x` has more than one column `c`"),
    ],
)
def test_names_that_lead_nowhere_are_refused(found, message):
    with pytest.raises(DataError, match=message):
        arrays.order_names(NAMES, found, "x")


@given(st.permutations(range(3)), st.integers(0, 2))
def test_every_kind_of_rows_is_put_in_the_order_of_training(order, more):
    order, extra = list(order), np.full((4, more), 9.0)
    given_names = [*(NAMES[place] for place in order), *(f"z{place}" for place in range(more))]
    values = np.hstack([X[:, order], extra])
    encoding = ArrayEncoding((3,), names=NAMES)
    for features in (array(values, given_names), slots(values, given_names)):
        opened = registry.open_features(features, "newdata", encoding=encoding)
        for rows in (opened.encode(encoding), opened.encode_later(encoding)):
            np.testing.assert_array_equal(rows.gather(slice(None)), X)
    labels = {**array(values, given_names), "kind": "matrix"}
    encoded, _ = encode_chunk(
        Chunk(array(X[:, order], given_names[:3]), labels, None, 1, 1),
        Recipe(ArrayEncoding((3,), names=NAMES), label=learned_label()),
        "error",
        "x",
    )
    np.testing.assert_array_equal(encoded[0], X)
    np.testing.assert_array_equal(encoded[1], X)


def learned_label():
    data = map_dataset.build_dataset(array(X), {}, {**array(X, NAMES), "kind": "matrix"})
    return data.recipe.label


def test_rows_of_an_array_of_higher_rank_go_by_their_last_dimension():
    x = np.arange(24.0).reshape(4, 2, 3)
    encoding = ArrayEncoding((2, 3), names=NAMES)
    opened = registry.open_features(array(x[..., ::-1], NAMES[::-1]), "x", encoding=encoding)
    np.testing.assert_array_equal(opened.encode(encoding).gather(slice(None)), x)


def test_batches_that_are_kept_follow_the_first_one():
    kept = _Array(array(X, NAMES), "x", "memory")
    for order in ([0, 1, 2], [2, 0, 1]):
        kept.add(array(X[:, order], [NAMES[place] for place in order]))
    np.testing.assert_array_equal(kept.finish()["values"], np.vstack([X, X]))


def test_encoded_rows_in_another_order_are_refused(tmp_path):
    trained, other = (ArrayEncoding((3,), names=names) for names in (NAMES, ("a", "c", "b")))
    with pytest.raises(DataError, match="`data` has the column `c` where training had `b`"):
        check_order(trained, other, "data")
    check_order(trained, ArrayEncoding((3,)), "data")
    check_order(ArrayEncoding((3,)), other, "data")
    several = [InputsEncoding((Input("i", each),)) for each in (trained, other)]
    with pytest.raises(DataError, match=r"`data\$i` has the column `c`"):
        check_order(*several, "data")


@pytest.mark.tf
def test_a_model_remembers_the_names_of_its_columns():
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model_recipes.tie_recipe(model, map_dataset.build_dataset(array(X, NAMES), {}).recipe)
    turned = map_dataset.build_dataset(array(X, NAMES[::-1]), {}).recipe
    with pytest.raises(DataError, match="where training had"):
        model_recipes.check_encoding(model, turned)


@pytest.mark.parametrize(
    ("formula", "output", "name"),
    [
        ("", "", "y"),
        ("", "price", "y$price"),
        ("price ~ a + b", "", "price"),
        ("`the price` ~ a", "", "the price"),
        ("log(price) ~ a", "", "log(price)"),
        ("list(price, cut) ~ a", "cut", "cut"),
        ("<recipe 3>", "", "y"),
    ],
)
def test_labels_are_called_by_their_column(formula, output, name):
    assert targets.name_label(formula, output) == name
