"""Options of pruning, quantization and distillation, and those of their report."""

import pytest

from gpukeras.compression import layer_options
from gpukeras.compression.distillation import DistillSpec
from gpukeras.compression.pruning import PruneSpec, late_stopping
from gpukeras.compression.quantization import QuantizeSpec
from gpukeras.compression.report import ReportSpec
from gpukeras.core.errors import SpecError


@pytest.mark.parametrize(
    ("spec", "options", "arg"),
    [
        (PruneSpec, {"sparsity": 1.0}, "sparsity"),
        (PruneSpec, {"sparsity": 0}, "sparsity"),
        (PruneSpec, {"sparsity": "0.8"}, "sparsity"),
        (PruneSpec, {"schedule": "square"}, "schedule"),
        (PruneSpec, {"structured": 1}, "structured"),
        (PruneSpec, {"scope": "model"}, "scope"),
        (PruneSpec, {"target": "bytes"}, "target"),
        (PruneSpec, {"norm": "l3"}, "norm"),
        (PruneSpec, {"epochs": -1}, "epochs"),
        (PruneSpec, {"frequency": 0}, "frequency"),
        (PruneSpec, {"ramp": 0}, "ramp"),
        (PruneSpec, {"ramp": 1.5}, "ramp"),
        (PruneSpec, {"initial": 0.9}, "initial"),
        (PruneSpec, {"exclude": [1.0]}, "exclude"),
        (PruneSpec, {"learning_rate": 0}, "learning_rate"),
        (PruneSpec, {"max_drop": -1}, "max_drop"),
        (PruneSpec, {"fit": {"checkpoint": "folder"}}, "checkpoint"),
        (PruneSpec, {"fit": {"engin": "keras"}}, "engin"),
        (PruneSpec, {"sparsty": 0.5}, "sparsty"),
        (QuantizeSpec, {"mode": "int2"}, "mode"),
        (QuantizeSpec, {"exclude": [3]}, "exclude"),
        (QuantizeSpec, {"max_drop": -1}, "max_drop"),
        (DistillSpec, {"temperature": 0}, "temperature"),
        (DistillSpec, {"alpha": 1.5}, "alpha"),
        (DistillSpec, {"width": 1}, "width"),
        (DistillSpec, {"epochs": 0}, "epochs"),
        (DistillSpec, {"fit": 3}, "fit"),
        (ReportSpec, {"max_drop": -1}, "max_drop"),
        (ReportSpec, {"max_drop": "x"}, "max_drop"),
        (ReportSpec, {"batch_size": 0}, "batch_size"),
        (ReportSpec, {"metric": 3}, "metric"),
        (ReportSpec, {"wrong": 3}, "wrong"),
    ],
)
def test_bad_options_are_refused_by_name(spec, options, arg):
    with pytest.raises(SpecError) as caught:
        spec.from_dict(options)
    assert caught.value.details["arg"] == arg


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial": 0.9}, "`initial` must not be above `sparsity`"),
        ({"exclude": [1.0]}, "`exclude` must be names of layers, not a list"),
        ({"fit": ["keras"]}, "`fit` must be options by name, not a list"),
        ({"fit": {"checkpoint": "a"}}, "`checkpoint` is not for pruning, whose masks grow"),
    ],
)
def test_bad_options_are_explained(options, words):
    with pytest.raises(SpecError, match=words):
        PruneSpec.from_dict(options)


def test_options_are_normalised():
    spec = PruneSpec.from_dict({"exclude": "a", "epochs": 3.0, "fit": [], "ramp": 1})
    assert (spec.exclude, spec.epochs, spec.fit, spec.ramp) == (("a",), 3, {}, 1.0)
    assert DistillSpec.from_dict({"fit": []}).fit == {}


@pytest.mark.parametrize(
    ("path", "names", "wanted"),
    [
        ("inner/dense", ("dense",), True),
        ("inner/dense", ("inner",), True),
        ("inner/dense", ("inner/dense",), True),
        ("inner/dense_1", ("dense",), False),
        ("inner/dense", (), False),
    ],
)
def test_layers_are_named_by_themselves_or_by_the_models_around_them(path, names, wanted):
    assert layer_options.is_named(path, names) is wanted


def test_early_stopping_waits_until_the_masks_have_grown():
    spec = PruneSpec(fit={"early_stopping": 2, "engine": "keras"})
    options = late_stopping(spec, 4)
    assert options["early_stopping"]["start_epoch"] == 5
    assert options["engine"] == "keras"
    later = PruneSpec(fit={"early_stopping": {"patience": 1, "start_epoch": 9}})
    assert late_stopping(later, 4)["early_stopping"]["start_epoch"] == 9
