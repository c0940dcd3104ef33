import numpy as np
import pytest
from small_fits import make_model

from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.models.training_rows import (
    find_unweighed_share,
    judge_found,
    tie_stored,
    tie_training_rows,
    to_portable,
)


def test_many_rows_are_known_by_some_of_them():
    draw = np.random.default_rng(4)
    known, asked = draw.integers(2**32, size=(2, 100_000), dtype=np.uint32)
    for share in (0.0, 0.3, 1.0):
        count = int(share * len(asked))
        rows = np.concatenate([known[:count], asked[count:]])
        assert judge_found(rows, known[::10], len(known)) == pytest.approx(share, abs=0.03)


def test_some_equal_rows_are_no_training_rows():
    known = np.repeat(np.arange(50, dtype=np.uint32), [4] * 25 + [1] * 25)  # 100 of 125 have a twin
    asked = np.concatenate([np.arange(25), np.arange(100, 105)]).astype(np.uint32)
    assert judge_found(asked, known, len(known)) == 0  # 25 of 30, where 24 are expected
    assert judge_found(known, known, len(known)) == 1
    assert judge_found(known[:0], known, len(known)) == 0


@pytest.mark.parametrize(
    "damage", [7, [3], [{}], [{"count": 1, "digests": "00000000ffffffff"}], [{"count": "x"}]]
)
def test_damaged_rows_are_refused(damage):
    with pytest.raises((TypeError, ValueError, KeyError)):
        tie_stored(object(), damage)


@pytest.mark.tf
@pytest.mark.parametrize(
    ("weights", "class_weight", "share"),
    [
        (np.linspace(0.5, 2, 60), None, 1.0),
        (np.ones(60), None, 0.0),
        (None, None, 0.0),
        (None, "balanced", 0.0),  # Keras evaluates without weights of classes, too
        (np.linspace(0.5, 2, 60), "balanced", 1.0),
        (np.ones(60), "balanced", 0.0),
    ],
)
def test_rows_that_lack_the_weights_of_their_training_are_found(weights, class_weight, share):
    draw = np.random.default_rng(1)
    x = draw.normal(size=(60, 5))
    levels = ["a", "b", "c"]
    labels = {"kind": "factor", "values": draw.integers(1, 4, 60).astype(np.int32)}
    labels["levels"] = levels

    def build(x, **options):
        return build_dataset({"kind": "array", "values": x}, {}, labels, **options)

    model, data = make_model(), build(x, weights=weights, class_weight=class_weight)
    tie_training_rows(model, data)
    assert find_unweighed_share(model, build(x), "all") == share
    assert find_unweighed_share(model, build(x + 1), "all") == 0
    assert find_unweighed_share(model, data, "all") == 0
    copy = make_model()
    tie_stored(copy, to_portable(model))
    assert find_unweighed_share(copy, build(x), "all") == share
