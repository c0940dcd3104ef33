import dataclasses
import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_costs import RingCost

from gpukeras import api
from gpukeras.core import options as core_options
from gpukeras.core.errors import SpecError

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=50),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def find_leaves(kind):
    """The kinds of options that can be made, also of those that several share a base of."""
    below = [leaf for kind in kind.__subclasses__() for leaf in find_leaves(kind)]
    return [*([] if inspect.isabstract(kind) else [kind]), *below]


assert api.ENTRY_POINTS  # it imports every module that has options
SPECS = [spec for spec in find_leaves(core_options.Spec) if spec is not core_options.Spec]
RING = RingCost(1e-5, 1e9)
NEEDED = {
    "EarlyStoppingSpec": {"patience": 3},
    "CheckpointSpec": {"folder": "run"},
    "BoardSpec": {"folder": "run"},
    "WindowRule": {"time": "when"},
    "ClusterSpec": {"workers": ("a:1000", "b:1000")},
    "RingCost": {"latency_s": 1e-5, "bytes_per_s": 1e9},
    "NodesCost": {"inside": RING, "between": RING},
    "TrackSpec": {"path": "runs"},
    "Measurement": {"replicas": 2, "size_bytes": 8, "seconds": 1.0},
}
# The argument that a refused field is named by, where it is not the field's own name. A first value
# that is not below the second is refused as the second.
ARGS = {
    "low": {"from", "to"},
    "high": {"to"},
    "kind": {"kind", "path"},  # "mlflow" has no path
    "metric": {"maximize"},  # of a search, where its name does not say what is better
    "folder": {"checkpoint", "tensorboard"},
    "free_gib": {"wait"},
    "timeout_s": {"timeout"},
    "source": {"workers"},
    "targets": {"y"},
    "name": {"family"},
}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_defaults_are_valid(spec):
    needed = NEEDED.get(spec.__name__, {})
    assert spec.from_dict(needed) == spec(**needed)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_unknown_options_are_refused_by_name(spec):
    with pytest.raises(SpecError, match=r"Unknown option `batchsize`") as caught:
        spec.from_dict({"batchsize": 3})
    assert caught.value.details == {"arg": "batchsize"}
    assert dataclasses.fields(spec)[0].name in caught.value.hint


@pytest.mark.costly
@pytest.mark.varies
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
@given(st.data())
def test_any_value_is_taken_or_refused_by_name(spec, data):
    name = data.draw(st.sampled_from([field.name for field in dataclasses.fields(spec)]))
    value = data.draw(ODD)
    refused = set()
    try:
        spec.from_dict({**NEEDED.get(spec.__name__, {}), name: value})
    except SpecError as error:
        refused = {error.details["arg"]}
    inner = set(value) if isinstance(value, dict) else set()
    assert refused <= {name} | ARGS.get(name, set()) | inner


@given(st.floats(min_value=-1e15, max_value=1e15))
def test_counts_from_r_are_whole_numbers_or_refused(value):
    if value == int(value) and value >= 1:
        count = core_options.check_count("n", value)
        assert isinstance(count, int)
        assert count == value
    else:
        with pytest.raises(SpecError):
            core_options.check_count("n", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, None, "1", [1]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(SpecError, match="must be a number"):
        core_options.check_number("x", value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": 1.0}, "`device` must be a string"),
        ({"memory": "half"}, '`memory` must be one of "growth", "all", not "half"'),
        ({"memory": 10.0}, "`memory` must be a whole number of at least 64, not 10"),
        ({"memory": 100.5}, "`memory` must be a whole number"),
        ({"precision": "float16"}, "`precision` must be one of"),
        ({"jit": "yes"}, '`jit` must be TRUE or FALSE, not "yes"'),
        ({"threads": 0.0}, "`threads` must be a whole number from 1 to 4096, not 0"),
        ({"seed": -1.0}, "`seed` must be a whole number from 0"),
        ({"deterministic": 1.0}, "`deterministic` must be TRUE or FALSE, not 1"),
    ],
)
def test_setup_refuses(options, message):
    with pytest.raises(SpecError) as caught:
        core_options.SetupSpec.from_dict(options)
    assert message in caught.value.message


def test_setup_normalises_numbers_of_r():
    spec = core_options.SetupSpec(memory=2048.0, threads=2.0, seed=1.0)
    assert (spec.memory, spec.threads, spec.seed) == (2048, 2, 1)
    assert all(type(value) is int for value in (spec.memory, spec.threads, spec.seed))


def test_a_lone_unit_becomes_a_tuple():
    assert core_options.MlpSpec(units=8.0).units == (8,)
    assert core_options.MlpSpec(units=[8.0, 4.0]).units == (8, 4)


def test_an_mlp_keeps_some_numbers_of_each_layer():
    assert core_options.MlpSpec(dropout=0.99).dropout == 0.99
    with pytest.raises(SpecError, match="`dropout`"):
        core_options.MlpSpec(dropout=1.0)


def test_descriptions_never_show_a_users_data():
    class Frame:
        shape = (3, 2)

    assert core_options.describe(Frame()) == "an array of shape (3, 2)"
    assert core_options.describe(["secret"]) == "a list"
    assert core_options.describe([1.0, 2]) == "2 numbers"
    assert core_options.describe(["secret", "b"]) == "2 strings"
    assert core_options.describe([True, False, True]) == "3 logical values"
    assert core_options.describe([1.0, "b"]) == core_options.describe([[1], [2]]) == "a list"
    assert core_options.describe([]) == "a vector or list of length 0"
    assert core_options.describe(np) == "a module"
    assert len(core_options.describe("x" * 1000)) < 50


def test_whole_numbers_are_written_with_all_their_digits():
    with pytest.raises(SpecError, match="from 0 to 2147483647, not 3000000000[.]$"):
        core_options.check_count("seed", 3e9, 0, 2**31 - 1)
    with pytest.raises(SpecError, match="from 1e-12 to 1000, not 1234567[.]$"):
        core_options.check_number("rate", 1234567.0, 1e-12, 1000.0)
    assert core_options.describe(-math.inf) == "-Inf"
    assert core_options.describe(math.nan) == "NaN"


@pytest.mark.parametrize("value", [10**400, -(10**4299)])
@pytest.mark.parametrize(
    "check", [core_options.check_number, core_options.check_count, core_options.check_positive]
)
def test_a_whole_number_that_no_float_holds_is_refused(check, value):
    with pytest.raises(SpecError, match="not a number that is too large"):
        check("epochs", value)
