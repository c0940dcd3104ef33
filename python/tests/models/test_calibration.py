from dataclasses import asdict

import numpy as np
import pytest

from gpukeras import SpecError
from gpukeras.models import calibration
from gpukeras.models.calibration import Calibration


class Model:
    """Anything that a weak table can hold."""


NUMBERS = Calibration("numbers", 3, ((0.1, 0.2, 0.5),))
CLASSES = Calibration("classes", 3, reading="softmax", temperature=2.0)
QUANTILES = Calibration("quantiles", 2, ((-0.1, 0.2),), quantiles=(0.1, 0.9))


@pytest.mark.parametrize("known", [NUMBERS, CLASSES, QUANTILES])
def test_a_calibration_survives_as_json_values(known):
    one, other = Model(), Model()
    calibration.tie_calibration(one, known)
    calibration.tie_stored(other, calibration.to_portable(one))
    assert calibration.calibration_of(other) == known
    calibration.tie_calibration(other, None)
    assert calibration.calibration_of(other) is None
    calibration.tie_stored(other, calibration.to_portable(other))
    assert calibration.calibration_of(other) is None


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "words"},
        {"rows": 0},
        {"scores": ((0.3, 0.1),)},
        {"scores": ((float("nan"),),)},
        {"scores": ()},
        {"scores": ((),)},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"kind": "quantiles", "quantiles": (0.1, 0.5, 0.8, 0.9)},
        {"kind": "classes", "scores": (), "reading": "tea leaves"},
    ],
)
def test_a_damaged_one_is_refused(change):
    with pytest.raises(SpecError, match=r"This is no calibration of gpu_calibrate\(\)"):
        calibration.tie_stored(Model(), {**asdict(NUMBERS), **change})


def test_only_probabilities_are_adjusted_and_in_their_own_memory():
    model, chances = Model(), np.array([[0.5, 0.5], [0.9, 0.1]], np.float32)
    given = chances.copy()
    assert calibration.adjust(model, given) is given
    calibration.tie_calibration(model, NUMBERS)
    np.testing.assert_array_equal(calibration.adjust(model, given), chances)
    calibration.tie_calibration(model, CLASSES)
    assert calibration.adjust(model, given) is given
    np.testing.assert_allclose(given, [[0.5, 0.5], [0.75, 0.25]], rtol=1e-6)
    assert calibration.adjust(model, [given])[0] is given
