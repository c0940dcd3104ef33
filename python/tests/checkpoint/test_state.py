import numpy as np
import pytest
from training_states import WHOLE, assert_same

from gpukeras import SpecError
from gpukeras.checkpoint.format import read_file, write_file
from gpukeras.checkpoint.manager import CheckpointSpec
from gpukeras.checkpoint.state import TrainingState, pack_state, unpack_state
from gpukeras.models.state import Snapshot


def through_a_file(state, path):
    write_file(path, *pack_state(state))
    return unpack_state(*read_file(path))


@pytest.mark.parametrize("state", [WHOLE, TrainingState(Snapshot({}))], ids=["whole", "empty"])
def test_a_state_comes_back_to_the_last_bit(tmp_path, state):
    back = through_a_file(state, tmp_path / "f")
    for name in vars(state):
        assert_same(getattr(state, name), getattr(back, name))


def test_packing_copies_no_arrays():
    arrays = pack_state(WHOLE)[1]
    assert np.shares_memory(arrays["model/weights/0000"], WHOLE.snapshot.arrays["weights/0000"])


@pytest.mark.parametrize("change", [{"epoch": None}, {"unknown": 1}])
def test_a_state_of_another_version_is_an_error(change):
    plain, arrays = pack_state(WHOLE)
    plain = {**plain, **change}
    if plain.get("epoch") is None:
        del plain["keepers"]
    with pytest.raises((KeyError, TypeError)):
        unpack_state(plain, arrays)


# Options -----------------------------------------------------------------------------------------


def test_options_are_a_folder_or_a_few_more():
    assert CheckpointSpec.parse("run") == CheckpointSpec("run", None, None, 3)
    given = {"folder": "run", "every_s": 10, "keep": 2.0}
    assert CheckpointSpec.parse(given) == CheckpointSpec("run", None, 10.0, 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "`checkpoint` must be the path of a folder"),
        (3, "`checkpoint` must be the path of a folder, not 3"),
        ({}, "`checkpoint` must be the path of a folder"),
        ({"folder": "run", "every_s": -1}, "`every_s` must be"),
        ({"folder": "run", "keep": 0}, "`keep` must be"),
        ({"folder": "run", "every": 1}, "Unknown option `every`"),
    ],
)
def test_bad_options_are_named(given, says):
    with pytest.raises(SpecError, match=says):
        CheckpointSpec.parse(given)
