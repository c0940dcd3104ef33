import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from gpukeras.models import temperature


def draw_classes(classes=3, rows=4000, factor=3.0, seed=1):
    """Logits, as a model gives them that is too sure by a factor, and classes drawn from them."""
    draw = np.random.default_rng(seed)
    true = draw.normal(size=(rows, classes))
    chances = temperature.soften(true)
    codes = (chances.cumsum(1) > draw.uniform(size=(rows, 1))).argmax(1)
    return true * factor, codes


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_temperature_minimises_the_log_loss(classes, factor):
    logits, codes = draw_classes(classes, factor=factor)

    def loss(inverse):
        return temperature.log_loss(temperature.soften(logits, 1 / inverse), codes)

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9})
    found = temperature.fit_temperature(logits, codes)
    assert 1 / found == pytest.approx(best.x, rel=1e-4)
    assert found == pytest.approx(factor, rel=0.1)


def test_rows_that_are_all_right_or_all_wrong_have_a_temperature_still():
    logits = np.array([[2.0, 0, 1], [0, 3, 1]])
    right = temperature.fit_temperature(logits, np.array([0, 1]))
    wrong = temperature.fit_temperature(logits, np.array([1, 0]))
    assert right == pytest.approx(temperature.LOWEST, rel=0.01)
    assert wrong == pytest.approx(temperature.HIGHEST, rel=0.01)
    same = temperature.fit_temperature(np.zeros((2, 2)), np.array([0, 1]))
    assert temperature.LOWEST <= same <= temperature.HIGHEST


def test_weights_are_rows_that_are_there_several_times():
    rng = np.random.default_rng(2)
    logits, codes, counts = rng.normal(size=(80, 3)), rng.integers(0, 3, 80), rng.integers(1, 4, 80)
    many, repeated = np.repeat(logits, counts, axis=0), np.repeat(codes, counts)
    found = temperature.fit_temperature(logits, codes, counts)
    assert found == pytest.approx(temperature.fit_temperature(many, repeated))
    chances, other = temperature.soften(logits), temperature.soften(many)
    assert temperature.log_loss(chances, codes, counts) == pytest.approx(
        temperature.log_loss(other, repeated)
    )
    assert temperature.calibration_error(chances, codes, weights=counts) == pytest.approx(
        temperature.calibration_error(other, repeated)
    )


def test_the_calibration_error_by_hand():
    chances = np.array([[0.9, 0.1], [0.95, 0.05], [0.4, 0.6], [0.7, 0.3]])
    classes = np.array([0, 1, 1, 0])
    # bins of a tenth: 0.9 | 0.95 | 0.6 | 0.7
    gaps = [0.1, 0.95, 0.4, 0.3]
    assert temperature.calibration_error(chances, classes, 10) == pytest.approx(sum(gaps) / 4)
    # two bins: all four are in the upper one
    assert temperature.calibration_error(chances, classes, 2) == pytest.approx(abs(3.15 - 3) / 4)


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_of_every_form_have_the_same_probabilities(classes):
    logits, _ = draw_classes(classes, rows=50)
    expected = temperature.soften(logits)
    outputs = {temperature.LOGITS: logits, temperature.SOFTMAX: expected}
    if classes == 2:
        single = logits[:, 1:] - logits[:, :1]
        outputs |= {temperature.LOGIT: single, temperature.SIGMOID: 1 / (1 + np.exp(-single))}
    for reading, output in outputs.items():
        found = temperature.soften(temperature.to_logits(output, reading))
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=reading)


def test_outputs_are_rescaled_in_their_own_form():
    logits, _ = draw_classes(rows=50)
    expected = temperature.soften(logits, 2)
    softmax = temperature.soften(logits).astype(np.float32)
    found = temperature.rescale(softmax, temperature.SOFTMAX, 2.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(temperature.rescale(logits, temperature.LOGITS, 2.0), logits / 2)
    single = logits[:, :1]
    halved = 1 / (1 + np.exp(-single / 2))
    sigmoid = 1 / (1 + np.exp(-single))
    np.testing.assert_allclose(temperature.rescale(sigmoid, temperature.SIGMOID, 2.0), halved)
    np.testing.assert_allclose(temperature.rescale(single, temperature.LOGIT, 2.0), single / 2)
    sure = temperature.rescale(np.array([0.0, 1.0], np.float32), temperature.SIGMOID, 2.0)
    assert np.isfinite(sure).all()
    assert sure[0] < 1e-10 < 1 - 1e-10 < sure[1]
