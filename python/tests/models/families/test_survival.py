import numpy as np
import pytest
from familied import ROWS, dataset, features, labels_of, model_of

from gpukeras.backend import runtime
from gpukeras.data import dataset as data_dataset
from gpukeras.models.families import survival
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import Family
from gpukeras.training import fit, predict

pytestmark = pytest.mark.tf
TIME = np.array([3.0, 1.0, 2.0, 2.0, 5.0, 2.0, 3.0, 3.0])
EVENT = np.array([1, 1, 1, 1, 0, 0, 1, 1.0])
ETA = np.array([0.3, -1.0, 0.5, 0.2, 0.1, 1.5, -0.4, 0.9])


def tensor(values):
    return runtime.keras().ops.convert_to_tensor(np.asarray(values, "float32"))


def partial_likelihood(time, event, eta, ties):
    """By its definition, time by time."""
    total, risk = 0.0, np.exp(eta)
    for moment in np.unique(time[event > 0]):
        tied = (time == moment) & (event > 0)
        left, own, count = risk[time >= moment].sum(), risk[tied].sum(), tied.sum()
        shares = np.arange(count) / count if ties == "efron" else np.zeros(count)
        total += np.log(left - shares * own).sum() - eta[tied].sum()
    return total


# `survival::coxph(Surv(time, event) ~ eta, ties = , init = 1, iter.max = 0)$loglik[2]`
COXPH = {"efron": 11.1746244335, "breslow": 12.36848791}


@pytest.mark.parametrize("ties", COXPH)
def test_the_partial_likelihood_is_that_of_its_definition(ties):
    family = Family("cox", "log", ties=ties)
    labels = np.column_stack([TIME, EVENT])
    found = likelihood(family).loss(family, tensor(labels), tensor(np.exp(ETA)[:, None]))
    expected = partial_likelihood(TIME, EVENT, ETA, ties)
    assert np.asarray(found).sum() == pytest.approx(expected, rel=1e-5)
    assert (np.asarray(found)[EVENT == 0] == 0).all()
    assert expected == pytest.approx(COXPH[ties], rel=1e-6)


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


def test_the_baseline_hazard_is_breslows():
    risk = np.exp(ETA)
    times, hazard = survival.baseline_hazard(TIME, EVENT, risk)
    known = [EVENT[t == TIME].sum() / risk[t <= TIME].sum() for t in (1, 2, 3)]
    assert times.shape == hazard.shape == (survival.GRID,)
    np.testing.assert_array_equal(np.unique(times), [1, 2, 3])
    np.testing.assert_allclose(np.unique(hazard), np.cumsum(known))
    assert not survival.baseline_hazard(TIME, 0 * EVENT, risk)[1].any()
    many = np.arange(1.0, 1001)
    times, hazard = survival.baseline_hazard(many, np.ones(1000), np.ones(1000))
    assert len(np.unique(times)) == survival.GRID
    every = np.cumsum(1 / np.arange(1000, 0, -1))
    np.testing.assert_allclose(hazard, every[times.astype(int) - 1])


def test_a_trained_model_of_cox_has_curves_by_its_training_rows():
    data = dataset("cox", validation=0.2)
    model = model_of("cox", data)
    fit.fit(model, data, {"epochs": 20, "engine": "superstep"})
    risk = model.predict(features().astype("float32"), verbose=0)[:, 0]
    time, event = labels_of("cox")["values"].T
    rows = data.train_rows
    assert len(rows) < ROWS
    expected = sum(
        event[rows][time[rows] == t].sum() / risk[rows][time[rows] >= t].sum() for t in (1, 2, 3)
    )
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
