import pytest

from gpukeras.training.report import explain_rate


@pytest.mark.parametrize(
    ("scaling", "replicas", "told"),
    [
        ("none", 4, "as given: `batch_size` counts the rows of all replicas"),
        ("linear", 4, '4 times the one given: rate_scaling = "linear"'),
        ("sqrt", 4, '2 times the one given: rate_scaling = "sqrt"'),
        ("sqrt", 2, '1.41 times the one given: rate_scaling = "sqrt"'),
        ("linear", 512, '512 times the one given: rate_scaling = "linear"'),
    ],
)
def test_a_history_says_what_several_replicas_did_to_the_learning_rate(scaling, replicas, told):
    assert explain_rate(scaling, replicas) == told
