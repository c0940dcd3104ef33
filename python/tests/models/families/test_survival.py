import numpy as np
import pytest
from familied import ROWS, dataset, features, labels_of, model_of
from lazy_modules import keras

from gpukeras.core.errors import DataError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.families import survival
from gpukeras.models.families.keras_classes import FamilyLoss
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import Family
from gpukeras.training import fit, predict

pytestmark = pytest.mark.tf
TIME = np.array([3.0, 1.0, 2.0, 2.0, 5.0, 2.0, 3.0, 3.0])
EVENT = np.array([1, 1, 1, 1, 0, 0, 1, 1.0])
ETA = np.array([0.3, -1.0, 0.5, 0.2, 0.1, 1.5, -0.4, 0.9])


def tensor(values):
    return keras.ops.convert_to_tensor(np.asarray(values, "float32"))


WEIGHT = np.array([1, 2, 0.5, 3, 1, 2, 0.25, 1.5])
STRATUM = np.array([0, 1, 0, 1, 1, 0, 1, 0.0])

PLAIN = [[0.07516171744, 0.23940442826, 1.04770216739]]
WEIGHTED = [[0.09756230657, 0.28599499452, 0.95420440985]]
FIRST, SECOND = [0.1006049146, 0.8881177088], [0.2971968544, 0.6308756875, 1.1941001815]
WEIGHTED_FIRST = [0.03372225832, 0.77787862544]
WEIGHTED_SECOND = [0.35256467350, 0.96022616633, 1.15665108671]
COXPH = [
    ("efron", False, False, 11.17462443, PLAIN),
    ("efron", True, False, 19.91355662, WEIGHTED),
    ("efron", False, True, 6.663396751, [FIRST, SECOND]),
    ("efron", True, True, 12.44682158, [WEIGHTED_FIRST, WEIGHTED_SECOND]),
    ("breslow", False, False, 12.36848791, [[0.07516171744, 0.22975986066, 0.76691748095]]),
    ("breslow", True, False, 21.1510839, [[0.09756230657, 0.27465230991, 0.71032938921]]),
    ("breslow", False, True, 7.356543931, [[0.1006049146, 0.6256134441], SECOND]),
    ("breslow", True, True, 13.31325555, [[0.03372225832, 0.52982650307], WEIGHTED_SECOND]),
]


@pytest.mark.parametrize(("ties", "weighted", "stratified", "expected", "hazards"), COXPH)
def test_likelihood_and_baseline_are_those_of_coxph(ties, weighted, stratified, expected, hazards):
    family = Family("cox", "log", ties=ties, strata=2 * stratified)
    labels, weights = np.column_stack([TIME, EVENT]), WEIGHT if weighted else np.ones(len(TIME))
    rows = np.column_stack([np.exp(ETA), STRATUM] if stratified else [np.exp(ETA)])
    loss = keras_class(FamilyLoss)(family=family.to_config())
    parts = np.asarray(loss.call((tensor(labels), tensor(weights)), tensor(rows)))
    assert parts.sum() == pytest.approx(expected, rel=1e-5)
    assert (parts[EVENT == 0] == 0).all()
    mean = loss(tensor(labels), tensor(rows), tensor(weights) if weighted else None)
    assert float(mean) == pytest.approx(expected / len(TIME), rel=1e-5)
    times, found = survival.baseline_hazard(family, labels, rows, weights)
    assert times.shape == found.shape == (len(hazards), survival.GRID)
    for place, hazard in enumerate(hazards):
        np.testing.assert_allclose(np.unique(found[place]), hazard, rtol=1e-6)
        own = (EVENT > 0) & ((place == STRATUM) if stratified else True)
        np.testing.assert_array_equal(np.unique(times[place]), np.unique(TIME[own]))


def test_a_batch_without_events_has_no_loss():
    family = Family("cox", "log", ties="efron")
    labels = np.column_stack([TIME, 0 * EVENT])
    found = likelihood(family).loss(family, tensor(labels), tensor(np.exp(ETA)[:, None]))
    assert not np.asarray(found).any()


def test_the_loss_of_discrete_times_counts_the_intervals_that_a_row_was_seen_in():
    family = Family("discrete_time", "logit", breaks=(1.0, 2.0, 4.0))
    hazards = np.array([0.1, 0.2, 0.5])
    labels = [[0.5, 1], [1.5, 1], [2.9, 0], [3.0, 0], [9.0, 1], [2.0, 1]]
    lived = -np.log1p(-hazards)
    expected = [
        -np.log(0.1),
        lived[0] - np.log(0.2),
        lived[:2].sum(),
        lived.sum(),
        lived.sum(),
        lived[0] - np.log(0.2),
    ]
    rows = tensor(np.tile(hazards, (6, 1)))
    found = likelihood(family).loss(family, tensor(labels), rows)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_discrete_hazards_are_those_of_the_life_table_without_features():
    values = labels_of("discrete_time")["values"]
    data = data_dataset.build_dataset(
        {"kind": "array", "values": np.zeros((ROWS, 1))},
        {"batch_size": ROWS},
        {"kind": "matrix", "values": values},
    )
    family = {"name": "discrete_time", "breaks": [1.0, 2.0, 4.0]}
    model = model_of("discrete_time", data, family=family)
    fit.fit(model, data, {"epochs": 150, "engine": "compiled"})
    time, event = values.T
    died = [((time == 1) & (event == 1)), ((time == 2) & (event == 1))]
    died.append((time > 2) & (time <= 4) & (event == 1))
    seen = [
        (time > end) & (event == 1) | (time >= middle) & (event == 0)
        for middle, end in ((0.5, 1), (1.5, 2), (3, 4))
    ]
    expected = [d.sum() / (d.sum() + s.sum()) for d, s in zip(died, seen, strict=True)]
    found = predict.predict(model, data=data, type="parameters")["values"][0]
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    curve = predict.predict(model, data=data, type="survival")
    np.testing.assert_allclose(curve["values"][0], np.cumprod(1 - found), rtol=1e-5)
    np.testing.assert_array_equal(curve["times"], [1.0, 2.0, 4.0])
    middle = predict.predict(model, data=data, type="survival", times=3.0)["values"][0, 0]
    assert middle == pytest.approx(curve["values"][0, 1:].mean(), rel=1e-5)
    s = curve["values"][0]
    area = (1 + s[0]) / 2 + (s[0] + s[1]) / 2 + (s[1] + s[2])
    for kind in ("response", "time"):
        found = predict.predict(model, data=data, type=kind)["values"][0]
        assert found == pytest.approx(area, rel=1e-5)


def test_breaks_are_quantiles_of_the_times_of_events():
    model = model_of("discrete_time")
    time, event = labels_of("discrete_time")["values"].T
    expected = np.unique(np.quantile(time[event > 0], np.arange(1, 11) / 10))
    np.testing.assert_allclose(model.layers[-1].family.breaks, expected)


def test_a_grid_keeps_evenly_spread_times_and_a_stratum_without_events_or_rows_is_known():
    family, many = Family("cox", "log", ties="breslow"), np.arange(1.0, 1001)
    labels, ones = np.column_stack([many, np.ones(1000)]), np.ones(1000)
    (times,), (hazard,) = survival.baseline_hazard(family, labels, ones[:, None], ones)
    assert len(np.unique(times)) == survival.GRID
    every = np.cumsum(1 / np.arange(1000, 0, -1))
    np.testing.assert_allclose(hazard, every[times.astype(int) - 1])
    family = Family("cox", "log", ties="efron", strata=3)
    rows = np.column_stack([np.exp(ETA), STRATUM])
    labels = np.column_stack([TIME, EVENT * (STRATUM == 0)])
    times, hazard = survival.baseline_hazard(family, labels, rows, np.ones(len(TIME)))
    assert hazard[0].all()
    assert not hazard[1:].any()
    assert (times[1] == 5).all()
    assert not times[2].any()
    own = {"times": times, "hazard": hazard}
    curves, drawn_at = survival.survival_curves(family, rows, own, None)
    assert (curves[STRATUM == 1] == 1).all()
    assert drawn_at.max() == labels[labels[:, 1] > 0, 0].max()
    for odd in (2.0, 7.0, -1.0):
        with pytest.raises(DataError, match="a stratum that has no training rows"):
            survival.survival_curves(family, np.array([[1.0, odd]]), own, None)


def test_curves_step_at_the_times_of_events_which_no_float32_need_hold():
    times = np.arange(1, 20) / 10
    labels, ones = np.column_stack([times.astype("float32"), np.ones(19)]), np.ones(19)
    family = Family("cox", "log", ties="breslow")
    grid, hazard = survival.baseline_hazard(family, labels, ones[:, None], ones)
    own = {"times": grid.astype("float32"), "hazard": hazard.astype("float32")}
    curves, _ = survival.survival_curves(family, np.ones((1, 1)), own, times)
    np.testing.assert_allclose(curves[0], np.exp(-np.cumsum(1 / np.arange(19, 0, -1))), rtol=1e-5)
    _, drawn_at = survival.survival_curves(family, np.ones((1, 1)), own, None)
    assert drawn_at.tolist() == times.tolist()  # 0.1, not 0.10000000149


@pytest.mark.slow
def test_a_trained_model_of_cox_has_curves_by_its_training_rows():
    data = dataset("cox", validation=0.2)
    model = model_of("cox", data)
    fit.fit(model, data, {"epochs": 20, "engine": "graph_loop"})
    risk = model.predict(features().astype("float32"), verbose=0)[:, 0]
    time, event = labels_of("cox")["values"].T
    rows = data.train_rows
    assert len(rows) < ROWS
    family = model.layers[-1].family
    labels = np.column_stack([time, event])[rows]
    ((times,), (hazard,)) = survival.baseline_hazard(
        family, labels, risk[rows, None], np.ones(len(rows))
    )
    expected = hazard[times <= 3.5].max()
    found = predict.predict(model, data=data, type="survival", times=[0.0, 3.5])
    np.testing.assert_allclose(found["values"][:, 0], 1.0)
    np.testing.assert_allclose(found["values"][:, 1], np.exp(-expected * risk), rtol=1e-4)
    default = predict.predict(model, data=data, type="survival")
    np.testing.assert_array_equal(default["times"], np.unique(time[rows][event[rows] > 0]))
    np.testing.assert_allclose(predict.predict(model, data=data)["values"], risk, rtol=1e-5)
    area = 1.0 + default["values"][:, :-1] @ np.diff(default["times"])  # the first event is at 1
    assert default["times"][0] == 1
    mean = predict.predict(model, data=data, type="time")["values"]
    np.testing.assert_allclose(mean, area, rtol=1e-5)
