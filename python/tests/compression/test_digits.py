"""What compressed models keep on real data: 1,797 handwritten digits, three in ten held out.

Nothing is drawn anew from run to run: the splits, the first weights and the engine are fixed.
Times are no part of it; `make bench-compression` measures them, and more seeds.
"""

import pytest
from compression_digits import make_conv, make_dense, open_digits, train

from gpukeras.compression import latency, masks
from gpukeras.compression.pruning import prune
from gpukeras.compression.quantization import quantize
from gpukeras.export import archive
from gpukeras.training import fit

# `test_pruning.py` and `test_quantization.py` assert the same of made-up rows in each run.
pytestmark = [pytest.mark.tf, pytest.mark.nightly]
POINT = 0.01
FIT = {"engine": "graph_loop"}


@pytest.fixture(scope="module", autouse=True)
def few_runs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "BUDGET_S", 0.0)
        yield


@pytest.fixture(scope="module")
def data():
    return open_digits(1)


@pytest.fixture(scope="module")
def dense(data):
    """A trained model that no test changes; as large as int8 needs to be felt beside the layout."""
    return train(make_dense(1, (512, 512)), data, 8)


@pytest.fixture(scope="module")
def sparse(dense, data):
    options = {"sparsity": 0.8, "epochs": 6, "fit": FIT}
    return prune(dense, data, options)


def test_four_in_five_weights_are_zeros_within_a_point(sparse):
    report = sparse["report"]
    assert report.before.metrics["accuracy"] > 0.95
    assert report.drop <= POINT
    kernels = masks.list_kernels(sparse["model"])
    zeros = sum(int((kernel.variable.numpy() == 0).sum()) for kernel in kernels)
    total = sum(kernel.variable.numpy().size for kernel in kernels)
    assert zeros / total == pytest.approx(0.8, abs=0.001)
    assert report.after.packed_bytes < 0.4 * report.before.packed_bytes


def test_zeros_survive_an_archive_and_further_training(sparse, data, tmp_path):
    path = str(tmp_path / "digits.keras")
    archive.save_archive(sparse["model"], path)
    loaded = archive.load_archive(path)["model"]
    wanted = masks.read_masks(sparse["model"])
    found = masks.read_masks(loaded)
    assert found.keys() == wanted.keys()
    assert all((found[name] == wanted[name]).all() for name in wanted)
    before = loaded.get_weights()
    fit.fit(loaded, data, {"epochs": 1, **FIT})
    assert any((a != b).any() for a, b in zip(before, loaded.get_weights(), strict=True))
    for kernel in masks.list_kernels(loaded):
        assert not kernel.variable.numpy()[~wanted[kernel.path]].any()


def test_int8_takes_three_tenths_of_the_disk_within_a_point(dense, data):
    report = quantize(dense, data, {"mode": "int8"})["report"]
    assert report.after.disk_bytes <= 0.3 * report.before.disk_bytes
    assert report.drop <= POINT


def count_products(model):
    """FLOPs of the products of a row, by hand: two for each weight at each place."""
    conv, first, last = (model.layers[place].kernel.numpy().size for place in (0, -3, -1))
    return 2 * (64 * conv + first + last)


@pytest.mark.nightly  # `test_structured.py` counts the FLOPs of models taken apart in each run
def test_half_the_flops_are_really_gone_and_the_digits_still_known(data):
    model = train(make_conv(1, (16,), 48), data, 8)
    options = {"sparsity": 0.5, "structured": True, "epochs": 4, "fit": FIT}
    found = prune(model, data, options)
    report = found["report"]
    assert 0.4 * report.before.flops < report.after.flops <= 0.5 * report.before.flops
    for one, flops in ((model, report.before.flops), (found["model"], report.after.flops)):
        assert 0.9 * flops < count_products(one) < flops  # the rest is not products
    assert report.after.parameters < 0.6 * report.before.parameters
    assert report.drop <= 2 * POINT
