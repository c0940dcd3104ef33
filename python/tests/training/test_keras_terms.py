import pytest

from gpukeras.training.keras_terms import KerasTerms


def failing():
    raise ValueError("made up") from OSError("the cause")


def test_without_terms_nothing_is_restored():
    terms, restored = KerasTerms(), []
    with pytest.raises(ValueError, match="made up"):
        terms.run(failing, lambda: restored.append(1))
    assert (terms.undone, restored) == (False, [])
    assert isinstance(terms.failed.__cause__, OSError)


def test_only_a_failure_of_the_first_call_is_undone():
    terms, restored = KerasTerms(continue_on_nan=True), []
    with pytest.raises(ValueError, match="made up"):
        terms.run(failing, lambda: restored.append(1))
    assert (terms.undone, restored) == (True, [1])
    terms = KerasTerms(continue_on_nan=True)
    assert terms.run(lambda: {"loss": 1.0}, lambda: None) == {"loss": 1.0}
    with pytest.raises(ValueError, match="made up"):
        terms.run(failing, lambda: restored.append(2))
    assert (terms.calls, terms.undone, restored) == (1, False, [1])
