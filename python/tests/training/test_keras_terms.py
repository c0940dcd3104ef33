import pytest

from gpukeras.training.keras_terms import KerasTerms


def failing():
    raise ValueError("made up") from OSError("the cause")


def test_without_terms_nothing_is_to_be_restored():
    terms = KerasTerms()
    with pytest.raises(ValueError, match="made up"):
        terms.run(failing)
    assert not terms.failed_at_first
    assert isinstance(terms.failed.__cause__, OSError)


def test_only_a_failure_of_the_first_call_is_undone():
    terms = KerasTerms(continue_on_nan=True)
    assert not terms.failed_at_first
    with pytest.raises(ValueError, match="made up"):
        terms.run(failing)
    assert terms.failed_at_first
    terms = KerasTerms(continue_on_nan=True)
    assert terms.run(lambda: {"loss": 1.0}) == {"loss": 1.0}
    with pytest.raises(ValueError, match="made up"):
        terms.run(failing)
    assert (terms.calls, terms.failed_at_first) == (1, False)
