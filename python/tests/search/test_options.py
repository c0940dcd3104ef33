import pytest

from gpukeras import SpecError
from gpukeras.search.options import SearchSpec, check_design, check_fit, check_trials
from gpukeras.search.space import parse_space

VARIED = parse_space({"rate": {"kind": "range", "low": 0.1, "high": 1.0}})
FIXED = parse_space({"rate": {"kind": "values", "values": [0.1]}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "`trials` must be a whole number from 1 to 1000000, not 0."),
        ({"seconds": 0}, "`seconds` must be above 0, not 0."),
        ({"epochs": 1.5}, "`epochs` must be a whole number of at least 1, not 1.5."),
        ({"eta": 1}, "`eta` must be a whole number of at least 2, not 1."),
        (
            {"epochs": 3, "min_epochs": 4},
            "`min_epochs` is 4, above `epochs`, which is 3.",
        ),
        ({"metric": ""}, '`metric` must be the name of a metric, not "".'),
        ({"design": "sobol"}, '`design` must be one of "latin", "random", not "sobol".'),
        ({"budget": 3}, "Unknown option `budget`."),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(SpecError) as caught:
        SearchSpec.from_dict(options)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("options", "metric", "mode"),
    [
        ({}, "val_loss", "min"),
        ({"metric": "accuracy"}, "val_accuracy", "max"),
        ({"metric": "val_auc"}, "val_auc", "max"),
        ({"metric": "loss"}, "val_loss", "min"),
        ({"metric": "mean_absolute_error"}, "val_mean_absolute_error", "min"),
        ({"metric": "concordance", "maximize": True}, "val_concordance", "max"),
        ({"metric": "accuracy", "maximize": False}, "val_accuracy", "min"),
    ],
)
def test_a_metric_is_that_of_the_held_out_rows(options, metric, mode):
    spec = SearchSpec.from_dict(options)
    assert (spec.metric, spec.rule.mode) == (metric, mode)


def test_a_search_has_settings_in_one_way():
    with pytest.raises(SpecError) as caught:
        check_design(FIXED, None, SearchSpec())
    assert caught.value.message == ("There is no setting to search: none has more than one value.")
    with pytest.raises(SpecError) as caught:
        check_design(VARIED, [{"units": 3}], SearchSpec())
    assert caught.value.message == "`rate` varies beside `grid`, whose rows are all trials."
    with pytest.raises(SpecError) as caught:
        check_design(FIXED, [{"units": 3}], SearchSpec(trials=4))
    assert caught.value.message == "`trials` is the number of rows of `grid`: give only one."
    check_design(FIXED, [{"units": 3}], SearchSpec())
    check_design(VARIED, None, SearchSpec(trials=4))


def test_batch_sizes_are_checked_before_anything_trains():
    check_trials([{"batch_size": 32.0}, {"units": 1}])
    with pytest.raises(SpecError) as caught:
        check_trials([{"batch_size": 32.0}, {"batch_size": 0.5}])
    assert caught.value.message == "`batch_size` must be a whole number of at least 1, not 0.5."


def test_options_of_the_trainings_are_checked():
    assert check_fit({"engine": "keras", "clip_norm": 1}) == {"engine": "keras", "clip_norm": 1.0}
    assert check_fit({}) == {}
    with pytest.raises(SpecError) as caught:
        check_fit({"epochs": 3})
    assert caught.value.message == ("`fit` has `epochs`, which trainings of a search do not take.")
    with pytest.raises(SpecError):
        check_fit({"engine": "fast"})
