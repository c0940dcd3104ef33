import inspect

import pytest

import gpukeras
from gpukeras.core import errors

TREE = [errors.GpuKerasError, *errors.GpuKerasError.__subclasses__()]


@pytest.mark.parametrize("error", TREE, ids=lambda error: error.__name__)
def test_every_error_is_public_and_stands_in_the_printed_tree(error):
    assert getattr(gpukeras, error.__name__) is error
    assert error.__module__ == "gpukeras"
    tail = f"_{error.code}" if error.code else ""
    line = next(line for line in errors.__doc__.splitlines() if f"{error.__name__} " in line)
    assert f"gpukeras_error{tail}" in line.split()


def test_codes_are_unique():
    assert len({error.code for error in TREE}) == len(TREE)


def test_message_and_hint_are_kept_apart_and_printed_together():
    error = errors.NoDeviceError("No GPU.", hint="Look.", wanted="gpu", found=["CPU:0"])
    assert (error.message, error.hint) == ("No GPU.", "Look.")
    assert str(error) == "No GPU. Look."
    assert error.details == {"wanted": "gpu", "found": ["CPU:0"]}


def test_without_a_hint_only_the_message_is_printed():
    assert str(errors.DataError("Bad shape.")) == "Bad shape."


def test_errors_have_no_argument_named_data():
    # Messages never hold the data; nothing invites to pass it.
    for error in TREE:
        assert "data" not in inspect.signature(error.__init__).parameters
