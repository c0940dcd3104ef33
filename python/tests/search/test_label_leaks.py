"""Trials learn from labels only of the rows that train their models."""

import json

import numpy as np
import pytest

from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.models.mlp import build_mlp
from gpukeras.search.search import search

pytestmark = pytest.mark.tf

FOLD = [list(range(1, 31))]


def train(changes, folder, family=None, **options):
    """Returns the training losses of a trial whose fold holds out labels that may change."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.poisson(5, 60) + 1.0
    if changes:
        y[:20] = 300
    labels = {"kind": "numeric", "values": y, "levels": []}
    data = build_dataset({"kind": "array", "values": x}, {"batch_size": 8, "seed": 1}, labels)

    def build(settings, seed):
        return {"model": build_mlp(data, {"units": [4], "seed": 1, "family": family})}

    folder = folder / str(changes)
    options = {"epochs": 2, "min_epochs": 2, "seed": 1, "folder": str(folder), **options}
    grid = [{"rate": 0.1}, {"rate": 0.2}]
    found = search(data, build, options, grid=grid, resamples=FOLD)
    assert found.failed == 0
    trials = [json.loads(path.read_text()) for path in sorted(folder.glob("trials/*.json"))]
    return [trial["rungs"][0]["history"]["loss"] for trial in trials], found.together


@pytest.mark.slow
@pytest.mark.parametrize("family", [None, "poisson"])
def test_labels_held_out_leave_stacks_as_they_are(family, monkeypatch, tmp_path):
    monkeypatch.setattr("gpukeras.many.plan.COMPILE_S", 0.0)
    (one, together), (other, _) = (train(each, tmp_path, family) for each in (0, 1))
    assert together == "2 trials in stacks of up to 2 models"
    assert one == other


@pytest.mark.slow
def test_labels_held_out_leave_models_alone_as_they_are(tmp_path):
    one, other = (train(each, tmp_path, most=1)[0] for each in (0, 1))
    assert one == other


@pytest.mark.slow
def test_labels_held_out_leave_models_of_workers_as_they_are(tmp_path):
    (one, together), (other, _) = (train(each, tmp_path, most=1, workers=2) for each in (0, 1))
    assert "2 worker processes" in together
    assert one == other
