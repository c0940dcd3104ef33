import gc

import numpy as np
import pytest
from small_fits import make_dataset, make_model
from streamed import CODES, Function, X, as_steps, stream

from gpukeras import DataError, SpecError
from gpukeras.backend import runtime
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.loader.loader import DataLoader
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.models import mlp
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("batch_size", [None, 7])
def test_evaluate_is_keras_evaluate(model, batch_size):
    data = make_dataset(300)
    result = evaluate.evaluate(model, data, batch_size=batch_size)
    expected = model.evaluate(*data.arrays, verbose=0, return_dict=True)
    assert result["rows"] == 300
    assert list(result["metrics"]) == ["loss", "accuracy"]
    for name, value in expected.items():
        np.testing.assert_allclose(result["metrics"][name], value, rtol=1e-5)


@pytest.mark.varies
@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_rows_leave_memory_with_the_call(model, call):
    data = make_dataset(100)
    run = {
        "evaluate": lambda: evaluate.evaluate(model, data),
        "predict": lambda: predict.predict(model, data=data),
    }[call]

    def find_held():
        return [each for each in gc.get_objects() if isinstance(each, (DataLoader, EpochLoop))]

    run()
    gc.collect()
    before = find_held()  # by fixtures of other tests
    gc.disable()  # what only the collector frees stays for a while, on a GPU too
    try:
        run()
        held = [each for each in find_held() if not any(each is known for known in before)]
    finally:
        gc.enable()
    assert not held


def test_evaluate_takes_a_part(model):
    data = make_dataset(100, validation=0.25)
    rows = [evaluate.evaluate(model, data, part)["rows"] for part in ("all", "train", "validation")]
    assert rows == [100, 75, 25]


def test_evaluate_refuses(model):
    data = make_dataset(100)
    with pytest.raises(DataError, match="no validation rows"):
        evaluate.evaluate(model, data, "validation")
    with pytest.raises(SpecError, match="`part` must be one of"):
        evaluate.evaluate(model, data, "test")
    fit.fit(model, make_dataset(100, scale=True), {"epochs": 1})
    with pytest.raises(DataError, match="encoded by its own means"):
        evaluate.evaluate(model, make_dataset(100, seed=5, scale=True))


def test_a_callback_that_may_end_rows_without_an_end_is_refused_and_not_waited_for():
    class Stopper(runtime.keras().callbacks.Callback):
        batches = 0

        def on_test_batch_end(self, batch, logs=None):
            self.batches += 1

        on_predict_batch_end = on_test_batch_end

    model, stopper = make_model(), Stopper()
    endless = stream(Function(X, CODES, [32, 32, 32, 4], ends=False))
    for call in (
        lambda: evaluate.evaluate(model, endless, callbacks=[stopper]),
        lambda: predict.predict(model, data=endless, callbacks=[stopper]),
    ):
        with pytest.raises(SpecError, match="Stopper works on batches, and all rows are one"):
            call()
    assert stopper.batches == 0
    evaluate.evaluate(model, as_steps(), callbacks=[stopper])
    predict.predict(model, data=as_steps(), callbacks=[stopper])
    assert stopper.batches == 2


def test_other_numbers_than_the_0_and_1_of_training_are_checked_against_the_loss():
    def built(values, recipe=None):
        labels = {"kind": "integer", "values": np.asarray(values)}
        return build_dataset({"kind": "array", "values": X}, {}, labels, recipe=recipe)

    codes = np.arange(len(X)) % 2
    data = built(codes)
    assert data.recipe.label.kind == "binary"
    later = built(codes + 1, data.recipe)
    model = mlp.build_mlp(data, {"units": []})
    with pytest.raises(DataError, match="labels from 1 to 2, but binary_crossentropy needs 0 to 1"):
        evaluate.evaluate(model, later)
    model.compile("sgd", "mse")
    found = evaluate.evaluate(model, later)["metrics"]["loss"]
    expected = model.evaluate(*later.arrays, verbose=0, return_dict=True)["loss"]
    assert found == pytest.approx(expected, rel=1e-5)
