"""What is printed reads as what Keras prints, apart from times and the steps between."""

import re

import numpy as np
import pytest
from nightly import few
from small_fits import make_model

from gpukeras.accelerate import printed, switch

pytestmark = pytest.mark.tf

X = np.random.default_rng(1).normal(size=(3300, 5))
Y = np.digitize(X[:, 0], [-0.5, 0.5])


def lines_of(text):
    """The last line of each epoch and call, without colours and times."""
    text = re.sub(r"\x1b\[\d+m", "", text.replace("\b", ""))
    lines = [line.split("\r")[-1].strip() for line in text.splitlines()]
    lines = [re.sub(r"\d+(\.\d+)?(s|ms|us)\b(/(step|epoch))?", "T", line) for line in lines]
    lines = [line for line in lines if line and not re.match(r"(\d+)/(?!\1\b)", line)]
    after = [*lines, ""][1:]
    # An epoch's last step may be shown before its end, which brings the validation's values.
    return [
        one for one, other in zip(lines, after, strict=True) if not (one and other.startswith(one))
    ]


def run(capsys, on, verbose):
    switch.report(clear=True)  # of files that ran before in this process
    was = switch.switch(on)
    try:
        model = make_model()
        capsys.readouterr()
        model.fit(X, Y, epochs=2, verbose=verbose, validation_split=0.1)
        model.evaluate(X, Y, verbose=verbose)
        model.predict(X, verbose=verbose)
    finally:
        switch.switch(was)
    return lines_of(capsys.readouterr().out)


@pytest.mark.float32(reason="programs of a GPU differ in the digits that are shown")
@pytest.mark.parametrize("verbose", few(["auto", 2, 0], "auto"))
def test_a_script_prints_what_it_printed(capsys, verbose):
    known, found = run(capsys, False, verbose), run(capsys, True, verbose)
    assert [call.engine for call in switch.report(clear=True)] == ["gpukeras"] * 3
    assert known == found
    assert len(known) == (0 if verbose == 0 else 6)


def test_updates_are_counted():
    model = make_model()
    model.fit(X[:64], Y[:64], verbose=0)
    assert printed.count_updates(model) == 2
