"""Each family's model: trained in the compiled engine, saved, and loaded in another process."""

from pathlib import Path

import numpy as np
import pytest
from familied import dataset, features, model_of
from jax_runs import needs_jax, run_part
from lazy_modules import keras
from nightly import few

from gpukeras.engine import rowwise
from gpukeras.export import keras_file, transfer
from gpukeras.models import registry
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.families import keras_classes
from gpukeras.models.families.spec import KINDS
from gpukeras.training import evaluate, fit

pytestmark = [pytest.mark.tf, pytest.mark.process]
NAMES = [*KINDS, "trials"]
DAILY = ["cox", "ordinal"]


class Trained:
    """Models of families with their reports and files, each made when it is first asked for."""

    def __init__(self, folder):
        self.folder, self.made = folder, {}

    def __getitem__(self, name):
        if name not in self.made:
            data = dataset(name)
            family = {"name": name, "dispersion": "rows"} if name == "gaussian" else None
            model = model_of(name, data, **({"family": family} if family else {}))
            report = fit.fit(model, data, {"epochs": 4, "engine": "compiled"})
            path = str(self.folder / f"{name}.keras")
            transfer.save_model(model, path)
            self.made[name] = (model, report, path)
        return self.made[name]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("families"))


@pytest.mark.slow
@pytest.mark.parametrize("name", few(NAMES, *DAILY))
def test_a_family_trains_in_the_compiled_engine_and_is_loaded_with_its_loss(trained, name):
    model, report, path = trained[name]
    assert report.engine.engine == "compiled"
    assert report.history["loss"][-1] < report.history["loss"][0]
    again, data = transfer.load_model(path), dataset(name)
    x = features().astype("float32")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    assert keras_classes.family_of(again) == keras_classes.family_of(model)
    assert keras_classes.family_of(model).name == {"trials": "binomial"}.get(name, name)
    assert bool(rowwise.explain_results(again)) == (name == "cox")
    assert loss_of(again, data) == pytest.approx(loss_of(model, data))


def loss_of(model, data, **options):
    return evaluate.evaluate(model, data, **options)["metrics"]["loss"]


@pytest.mark.slow
@needs_jax
@pytest.mark.parametrize("names", [DAILY, pytest.param(NAMES, marks=pytest.mark.nightly)])
def test_families_are_loaded_on_jax_by_a_process_that_has_not_made_them(
    trained, monkeypatch, names
):
    here = {name: trained[name][0] for name in names}
    monkeypatch.setenv("FAMILIES", str(trained.folder))
    part = "loaded" if names == DAILY else "all_loaded"
    found = run_part("familied", part)
    x = features().astype("float32")
    assert set(found) >= set(names)
    for name, model in here.items():
        expected = model.predict(x, verbose=0)
        np.testing.assert_allclose(found[name], expected, rtol=2e-4, atol=1e-6)


@pytest.mark.slow
@needs_jax
@pytest.mark.parametrize("part", few(["trained", "others_trained"], "trained"))
def test_families_train_on_jax(trained, monkeypatch, part):
    for name in DAILY:
        assert trained[name]
    monkeypatch.setenv("FAMILIES", str(trained.folder))
    for first, last, engine in run_part("familied", part).values():
        assert last < first
        assert engine == "compiled"


def test_only_classes_of_families_are_known_to_be_ours(trained):
    path = trained[DAILY[0]][2]
    needs = keras_file.needs_of(Path(path))
    assert needs.objects == needs.compiled == ()  # gpu_load() has them itself
    layer, loss = map(keras_class, keras_classes.CLASSES)
    name_of = keras.saving.get_registered_name
    assert {name_of(layer), name_of(loss)} <= registry.custom_objects().keys()
    assert not keras_classes.is_ours(keras.layers.Dense)
    assert not keras_classes.is_ours("mse")
    plain = keras.Sequential([keras.Input((2,))])
    assert keras_classes.family_of(plain) is None


@pytest.mark.slow
def test_half_precision_computes_the_likelihood_in_float32():
    config = keras.config
    config.set_dtype_policy("mixed_float16")
    try:
        data = dataset("negative_binomial")
        model = model_of("negative_binomial", data, units=[8])
        report = fit.fit(model, data, {"epochs": 2})
    finally:
        config.set_dtype_policy("float32")
    assert model.layers[-1].compute_dtype == "float32"
    assert model.predict(features(), verbose=0).dtype == "float32"
    assert np.isfinite(report.history["loss"]).all()


def weights_after(name, epochs, **options):
    data = dataset(name, batch_size=30)
    model = model_of(name, data)
    fit.fit(model, data, {"epochs": epochs, "engine": "graph_loop", **options})
    return model.get_weights()


@pytest.mark.slow
def test_a_family_with_weights_of_its_own_resumes_from_a_checkpoint(tmp_path):
    folder = str(tmp_path / "run")
    weights_after("ordinal", 1, checkpoint=folder)
    resumed = weights_after("ordinal", 2, checkpoint=folder)
    for one, other in zip(resumed, weights_after("ordinal", 2), strict=True):
        np.testing.assert_array_equal(one, other)
