import json

import pytest

from gpukeras.core.errors import SpecError
from gpukeras.models.families import spec
from gpukeras.models.families.registry import LIKELIHOODS


def test_each_kind_has_a_likelihood():
    assert LIKELIHOODS.keys() == spec.KINDS.keys()


def test_defaults_are_the_familys():
    assert spec.parse_family("gamma") == spec.FamilySpec("gamma", "log", "constant")
    assert spec.parse_family({"name": "binomial", "link": None}).link == "logit"
    assert spec.parse_family("quantile").quantiles == (0.1, 0.5, 0.9)
    assert spec.describe_family({"name": "quantile", "quantiles": 0.5}).quantiles == (0.5,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cauchy", '`family` must be the name of a family, not "cauchy"'),
        (3, "`family` must be the name of a family, not 3"),
        ({"name": "poisson", "link": "logit"}, 'The link of the family "poisson" must be one of'),
        (
            {"name": "gamma", "dispersion": "none"},
            'The dispersion of the family "gamma" must be one of "constant", "rows", not "none"',
        ),
        ({"name": "gamma", "quantiles": [0.5]}, 'The family "gamma" has no `quantiles`'),
        ({"name": "quantile", "quantiles": [0.9, 0.1]}, "must be in ascending order, each once"),
        ({"name": "quantile", "quantiles": [0.5, 1]}, "`quantiles` must lie between 0 and 1"),
        ({"name": "cox", "ties": "exact"}, '`ties` must be one of "efron", "breslow"'),
        ({"name": "poisson", "breaks": [1]}, 'The family "poisson" has no `breaks`'),
        ({"name": "discrete_time", "breaks": [2, 2]}, "`breaks` must be in ascending order"),
        ({"name": "cox", "proportional": True}, "has no `proportional`"),
        ({"name": "discrete_time", "proportional": 1}, "`proportional` must be TRUE or FALSE"),
        ({"name": "discrete_time", "breaks": [0, 2]}, "`breaks` must be above 0: time begins"),
        ({"name": "quantile", "quantiles": ["a"]}, "`quantiles` must be a number"),
    ],
)
def test_what_no_family_has_is_refused(given, message):
    with pytest.raises(SpecError, match=message):
        spec.parse_family(given)


def test_a_family_survives_a_keras_configuration():
    family = spec.Family("quantile", "identity", quantiles=(0.1, 0.9), names=("a", "b"), center=2.5)
    assert spec.Family.from_config(json.loads(json.dumps(family.to_config()))) == family


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "cauchy"},
        {"name": ["gamma"]},
        {"link": "logit"},
        {"dispersion": "none"},
        {"columns": 10**9},
        {"columns": 0},
        {"columns": "3"},
        {"scale": float("nan")},
        {"scale": 0.0},
        {"breaks": ["1"]},
    ],
)
def test_a_family_out_of_a_file_checks_itself(damage):
    sound = spec.Family("gamma", "log", "constant").to_config()
    assert spec.Family.from_config(sound).to_config() == sound
    with pytest.raises(SpecError, match="This is no family of gpu_family"):
        spec.Family.from_config({**sound, **damage})
