import numpy as np
import pytest
from explained_frames import FRAME, encode_frame, fit_frame, plain_loss
from small_fits import make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data import builder
from gpukeras.data.dataset import map_dataset
from gpukeras.explain.permutation import draw_orders, measure_importance
from gpukeras.training import evaluate

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def fitted():
    return fit_frame()


def shuffled(names, order):
    """The raw columns, of which some are in another order."""
    return [
        {**column, "values": column["values"][order]} if column["name"] in names else column
        for column in FRAME
    ]


def test_importance_is_that_of_shuffling_the_raw_columns(fitted):
    model, data = fitted
    found = measure_importance(model, data, groups={"both": ["a", "kind"]}, repeats=3, seed=5)
    assert found.columns == ("both", "b", "flag")
    orders = draw_orders(60, 3, 5)
    groups = [["a", "kind"], ["b"], ["flag"]]
    expected = [
        [plain_loss(model, data, shuffled(group, each)) for each in orders] for group in groups
    ]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-6)
    assert found.baseline == pytest.approx(
        evaluate.evaluate(model, data)["metrics"]["loss"], rel=1e-6
    )
    assert (found.metric, found.mode, found.rows) == ("loss", "min", 60)


def test_a_column_that_the_label_depends_on_matters_most(fitted):
    found = measure_importance(*fitted, repeats=5)
    rise = np.mean(found.scores, 1) - found.baseline
    assert found.columns[int(rise.argmax())] == "a"


def test_metrics_and_weights_are_those_of_evaluation(fitted):
    model, _ = fitted
    data = encode_frame(weights=np.linspace(0.1, 3, 60))
    metrics = evaluate.evaluate(model, data)["metrics"]
    for metric in ("loss", "mean_absolute_error"):
        found = measure_importance(model, data, columns="b", metric=metric, repeats=1)
        assert found.baseline == pytest.approx(metrics[metric], rel=1e-6)
        assert found.baseline != found.scores[0][0]


def test_the_result_does_not_depend_on_how_many_permutations_share_a_call(fitted, monkeypatch):
    from gpukeras.explain import varied

    together = measure_importance(*fitted, repeats=3)
    monkeypatch.setattr(varied, "CALL_BYTES", 1)
    alone = measure_importance(*fitted, repeats=3)
    np.testing.assert_allclose(alone.scores, together.scores, rtol=1e-6)


@pytest.mark.varies
@pytest.mark.parametrize("batch_size", [8, 12])
def test_recurrent_layers_that_keep_a_state_begin_each_permutation_without_one(batch_size):
    import keras

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(24, 4, 2))
    y = x[:, :, 0].sum(1)
    options = {"batch_size": batch_size, "scale": False}
    labels = {"kind": "number", "values": y}
    data = map_dataset.build_dataset({"kind": "array", "values": x}, options, labels)
    recurrent = keras.layers.SimpleRNN(3, stateful=True)
    model = keras.Sequential(
        [keras.Input((4, 2), batch_size=batch_size), recurrent, keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")

    def loss_of(rows):
        recurrent.reset_state()
        return model.evaluate(rows, y, batch_size=batch_size, verbose=0)

    model.predict(x, batch_size=batch_size, verbose=0)  # leaves a state
    found = measure_importance(model, data, repeats=2)
    assert found.baseline == pytest.approx(loss_of(x), rel=1e-5)
    for place, scores in enumerate(found.scores):
        for score, order in zip(scores, draw_orders(24, 2, 1), strict=True):
            shuffled_rows = x.copy()
            shuffled_rows[..., place] = x[order, :, place]
            assert score == pytest.approx(loss_of(shuffled_rows), rel=1e-5)


def test_a_score_that_is_no_number_is_refused(fitted):
    import keras

    model, data = fitted
    own = keras.Sequential(model.layers)
    own.compile("sgd", lambda y, p: keras.ops.log(-keras.ops.square(p)))
    with pytest.raises(ModelError, match="The loss of `model` of the rows as they are is not fin"):
        measure_importance(own, data)
    least = float(model.predict(data.arrays[0], verbose=0).min())
    own.compile("sgd", lambda y, p: keras.ops.sqrt(p - least))
    with pytest.raises(ModelError, match="The loss of `model` with a permuted is not finite"):
        measure_importance(own, data)


@pytest.mark.slow
def test_several_inputs_and_outputs_are_scored_as_evaluation_scores_them():
    from grouped import IMAGE, TABLE, build, two_heads

    model = two_heads({"image": IMAGE.shape[1:], "table": TABLE.shape[1:]}, style="dict")
    data = build()
    metrics = evaluate.evaluate(model, data)["metrics"]
    found = measure_importance(model, data, columns="table$1", repeats=2)
    assert found.baseline == pytest.approx(metrics["loss"], rel=1e-5)
    x = data.arrays[0].copy()
    place = np.prod(IMAGE.shape[1:], dtype=int)
    for score, order in zip(found.scores[0], draw_orders(len(x), 2, 1), strict=True):
        data.sources[0].array.flags.writeable = True
        data.sources[0].array[:, place] = x[order, place]
        assert score == pytest.approx(model_loss(model, data), rel=1e-5)
        data.sources[0].array[:] = x
    accuracy = measure_importance(model, data, columns="table$1", metric="cut_accuracy")
    assert (accuracy.baseline, accuracy.mode) == (metrics["cut_accuracy"], "max")


def model_loss(model, data):
    from gpukeras.data.loader.loader import sample_rows

    x, y = sample_rows(data, len(data))[:2]
    return float(model.evaluate(x, y, batch_size=len(data), verbose=0, return_dict=True)["loss"])


def test_what_cannot_be_measured_is_refused(fitted):
    import keras
    from streamed import as_function

    model, data = fitted
    with pytest.raises(SpecError, match="`metric` is `auc`, which `model` was not compiled with"):
        measure_importance(model, data, metric="auc")
    unlabelled = map_dataset.build_dataset(
        {"kind": "columns", "columns": FRAME}, {"batch_size": 20}, recipe=data.recipe
    )
    model.compile("sgd", "mse")
    with pytest.raises(DataError, match="`data` has no labels"):
        measure_importance(model, unlabelled)
    with pytest.raises(DataError, match="`data` has no validation rows"):
        measure_importance(model, data, part="validation")
    stream = as_function()
    other = make_model(stream.recipe.shape[0])
    with pytest.raises(
        DataError, match="`data` comes in sequence, but its rows are predicted again"
    ):
        measure_importance(other, stream)

    class Own(keras.Sequential):
        def test_step(self, data):
            return {"loss": 0.0}

    own = Own(model.layers)
    own.compile("sgd", "mse")
    with pytest.raises(ModelError, match=r"a `test_step\(\)` of its own: its loss is not known"):
        measure_importance(own, data)


def test_a_score_that_predictions_do_not_tell_is_refused(fitted):
    import keras

    _, data = fitted

    class Rounded(keras.Sequential):
        def predict_step(self, data):
            return keras.ops.round(super().predict_step(data))

    layers = keras.layers
    own = Rounded([keras.Input((6,)), layers.Dense(1)])
    penalised = keras.Sequential([keras.Input((6,)), layers.Dense(1, activity_regularizer="l2")])
    for model, why in (
        (own, r"a `predict_step\(\)` of its own"),
        (penalised, "is not known from its predictions: its layers add to it"),
    ):
        model.compile("sgd", "mse", metrics=["mae"])
        with pytest.raises(ModelError, match=why):
            measure_importance(model, data)
    metrics = evaluate.evaluate(penalised, data)["metrics"]
    found = measure_importance(penalised, data, metric="mae", repeats=1)
    assert found.baseline == pytest.approx(metrics["mae"], rel=1e-6)


def test_steps_that_a_mask_leaves_out_of_the_loss_are_told():
    import keras

    layers, draw = keras.layers, np.random.default_rng(1)
    codes, labels = draw.integers(0, 4, (40, 5)), draw.normal(size=(40, 5, 1))
    data = map_dataset.build_dataset(
        {"kind": "array", "values": codes.astype(float)},
        {"batch_size": 20, "scale": False},
        {"kind": "matrix", "values": labels},
    )
    embedding = layers.Embedding(4, 2, mask_zero=True)
    model = keras.Sequential([keras.Input((5,)), embedding, layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="not known from its predictions: masked steps do not"):
        measure_importance(model, data)


def test_all_steps_of_a_windows_column_are_permuted_together():
    import keras
    from series import make_columns, windows

    data = builder.assemble(windows(make_columns()), {"batch_size": 8, "shuffle": False})
    x, y = (source.gather(slice(None)).copy() for source in data.sources[:2])
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    model.compile("adam", "mse")
    found = measure_importance(model, data, repeats=1)
    assert found.columns == ("load", "temp", "day")
    order = draw_orders(len(x), 1, 1)[0]
    for place, score in zip(([0], [1], [2, 3]), found.scores, strict=True):
        moved = x.copy()
        moved[..., place] = x[order][..., place]
        expected = np.mean((model.predict(moved, verbose=0) - y.reshape(len(y), -1)) ** 2)
        assert score[0] == pytest.approx(expected, rel=1e-5)
