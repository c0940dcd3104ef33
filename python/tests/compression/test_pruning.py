"""Pruning from its options to its report; the model given is never changed."""

import numpy as np
import pytest
from lazy_modules import keras, layers
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.compression import masks, pruning, sparsity_schedule
from gpukeras.core.errors import CompressionError
from gpukeras.models import model_recipes
from gpukeras.training import fit as training_fit

pytestmark = pytest.mark.tf

FAST = {  # one engine, so that nothing is compiled
    "fit": {"engine": "graph_loop"},
    "epochs": 2,
}


def trained(epochs=2, **options):
    model = make_model(**{"optimizer": "adam", **options})
    fit = {"epochs": epochs, "engine": "graph_loop"}
    training_fit.fit(model, make_dataset(320, validation=0.2), fit)
    return model


@pytest.fixture(scope="module")
def model():
    """A trained model that no test changes."""
    return trained()


def run(model, **options):
    return pruning.prune(model, make_dataset(320, validation=0.2), {**FAST, **options})


@pytest.mark.parametrize("scope", few(["layer", "global"], "global"))
def test_a_pruned_model_is_a_copy_with_as_many_zeros_as_asked_for(model, scope):
    before = [weight.numpy() for weight in model.weights]
    found = run(model, sparsity=0.75, scope=scope)
    small, report = found["model"], found["report"]
    assert all((a == b.numpy()).all() for a, b in zip(before, model.weights, strict=True))
    assert small is not model
    assert masks.read_masks(model) == {}
    assert masks.sparsity(masks.read_masks(small)) == pytest.approx(0.75, abs=0.01)
    zeros = 64 - sum(int(np.count_nonzero(layer.kernel)) for layer in small.layers)
    assert zeros == pytest.approx(48, abs=1)
    assert report.kind == "prune"
    assert (report.before.nonzeros, report.after.nonzeros) == (75, 75 - zeros)
    assert report.after.parameters == report.before.parameters
    assert [each.layer for each in report.layers] == [layer.name for layer in model.layers]
    assert report.training.epochs == 2
    assert report.settings["sparsity"] == 0.75
    assert model_recipes.recipe_of(small) == model_recipes.recipe_of(model)


def test_zeros_of_a_pruned_model_survive_training_and_pruning_again(model):
    small = run(model, sparsity=0.5)["model"]
    kept = masks.read_masks(small)
    training_fit.fit(
        small, make_dataset(320, validation=0.2), {"epochs": 1, "engine": "graph_loop"}
    )
    for kernel in masks.list_kernels(small):
        assert not kernel.variable.numpy()[~kept[kernel.path]].any()
    smaller = masks.read_masks(run(small, sparsity=0.8)["model"])
    assert masks.sparsity(smaller) == pytest.approx(0.8, abs=0.01)
    assert all(not (smaller[path] & ~kept[path]).any() for path in kept)


@pytest.mark.slow
def test_excluded_and_untrained_layers_keep_their_weights_and_are_listed():
    frozen = layers.Dense(6, trainable=False, name="frozen")
    model = make_model(layers=[frozen, layers.Dense(6, name="kept")], optimizer="adam")
    report = run(model, exclude="kept", epochs=1)["report"]
    assert {each.layer: each.reason for each in report.listed} == {
        "frozen": "not trainable",
        "kept": "excluded",
    }
    assert len(report.layers) == 2
    with pytest.raises(SpecError, match='names "kpt", which no layer has.*kept'):
        run(model, exclude=["kpt"])
    names = [layer.name for layer in model.layers]
    with pytest.raises(ModelError, match="no kernel to prune"):
        run(model, exclude=names)


def test_a_model_can_be_pruned_without_training_and_without_data(model):
    found = pruning.prune(model, None, {"epochs": 0, "sparsity": 0.5})
    assert masks.sparsity(masks.read_masks(found["model"])) == 0.5
    assert found["report"].training is None
    assert found["report"].after.metrics == {}
    uncompiled = keras.models.clone_model(model)
    found = pruning.prune(uncompiled, None, {"epochs": 0, "sparsity": 0.5, "structured": True})
    assert found["report"].after.parameters < found["report"].before.parameters


def test_structured_pruning_makes_a_smaller_model_that_trains_on(model):
    found = run(model, structured=True, sparsity=0.5)
    small, report = found["model"], found["report"]
    assert report.after.flops <= report.before.flops * 0.5
    assert report.after.parameters < report.before.parameters
    assert report.after.disk_bytes < report.before.disk_bytes
    assert report.layers[0].change == "5 of 8 units taken out"
    assert report.listed[0].reason == "gives the output"
    assert report.training.epochs == 2
    training_fit.fit(
        small, make_dataset(320, validation=0.2), {"epochs": 1, "engine": "graph_loop"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("structured", few([False, True], False))
def test_a_model_that_got_too_much_worse_is_refused(structured):
    adam = keras.optimizers.Adam(0.03)
    model = trained(20, layers=[keras.layers.Dense(32, "relu")], optimizer=adam)
    with pytest.raises(CompressionError) as caught:
        run(model, sparsity=0.97, structured=structured, epochs=0, max_drop=0.01)
    assert caught.value.details["metric"] == "accuracy"


@pytest.mark.slow
def test_the_learning_rate_is_the_trainings_own():
    model = make_model(optimizer="adam")
    found = run(model, learning_rate=1e-4, epochs=1)
    assert found["report"].training.learning_rate[-1] == pytest.approx(1e-4)
    assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(1e-3)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(keras.optimizers.SGD(schedule), "sparse_categorical_crossentropy")
    with pytest.raises(SpecError, match="schedule of its own"):
        run(model, learning_rate=1e-4)


@pytest.mark.varies
@pytest.mark.parametrize("shorter", [{"steps_per_epoch": 3}, {"initial_epoch": 3}])
def test_masks_have_grown_before_a_shorter_training_ends(model, shorter, monkeypatch):
    shares = []

    def finish(growth):
        shares.extend(1 - mask.keep.numpy().mean() for mask in growth._masks)

    monkeypatch.setattr(sparsity_schedule.Growth, "finish", finish)
    run(model, epochs=4, fit={"engine": "graph_loop", **shorter})
    assert shares == pytest.approx([0.8] * len(shares), abs=0.05)


@pytest.mark.slow
def test_an_interrupted_training_says_that_masks_have_not_grown(model):
    data = make_dataset(320, validation=0.2)
    stop = pruning.prune(
        model, data, {**FAST, "epochs": 4}, on_event=lambda event: event["kind"] == "epoch"
    )
    assert stop["report"].training.stopped == "interrupted"
    assert "was interrupted" in stop["report"].notes[0]
    assert 0.3 < masks.sparsity(masks.read_masks(stop["model"])) < 0.8


@pytest.mark.slow
def test_masks_still_hold_after_averages_and_early_stopping(model):
    fit = {"engine": "graph_loop", "ema": 0.9, "early_stopping": 1}
    found = run(model, fit=fit, epochs=4)
    kept = masks.read_masks(found["model"])
    assert masks.sparsity(kept) == pytest.approx(0.8, abs=0.01)
    for kernel in masks.list_kernels(found["model"]):
        assert not kernel.variable.numpy()[~kept[kernel.path]].any()


def test_what_is_missing_is_said():
    with pytest.raises(DataError, match="`data` is missing"):
        pruning.prune(make_model(), None, {})
    model = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(ModelError, match="`model` has no weights to prune"):
        pruning.prune(model, None, {"epochs": 0})
    with pytest.raises(SpecError, match="max_drop"):
        pruning.prune(make_model(), None, {"epochs": 0, "max_drop": 0.1})
