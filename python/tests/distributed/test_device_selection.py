import numpy as np
import pytest

from gpukeras import SpecError
from gpukeras.core.errors import NoDeviceError
from gpukeras.distributed.device_selection import choose_devices, parse_devices

GPUS, CPUS = ("GPU:0", "GPU:1", "GPU:2"), ("CPU:0", "CPU:1")


@pytest.mark.parametrize(
    ("wanted", "parsed"),
    [
        ("all", "all"),
        (2, 2),
        (2.0, 2),
        ("GPU:1", ("GPU:1",)),
        (["GPU:0", "GPU:1"], ("GPU:0", "GPU:1")),
        (("gpu:1", "cpu:0"), ("GPU:1", "CPU:0")),
    ],
)
def test_devices_are_all_a_number_or_names(wanted, parsed):
    found = parse_devices(wanted)
    assert (type(found), found) == (type(parsed), parsed)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (None, "NULL"),
        (0, "0"),
        (-1, "-1"),
        (1.5, "1.5"),
        (True, "TRUE"),
        (float("nan"), "NaN"),
        (float("inf"), "Inf"),
        ([], "a vector or list of length 0"),
        ({"GPU:0": 1}, "a list"),
        ([0, 1], "2 numbers"),
        (["GPU:0", "gpu:0"], "2 strings"),
        (["GPU:0", None], "a list"),
        (np.arange(2), "an array of shape \\(2,\\)"),
    ],
)
def test_what_names_no_devices_is_refused(wanted, told):
    with pytest.raises(SpecError, match=f"`devices` must be .*, not {told}\\.") as caught:
        parse_devices(wanted)
    assert caught.value.details["arg"] == "devices"


@pytest.mark.parametrize(
    ("wanted", "gpus", "chosen"),
    [
        ("all", GPUS, GPUS),
        ("all", (), ("CPU:0",)),
        (1, GPUS, ("GPU:0",)),
        (2, GPUS, ("GPU:0", "GPU:1")),
        (("GPU:2", "GPU:0"), GPUS, ("GPU:2", "GPU:0")),
        (("CPU:0", "CPU:1"), (), CPUS),
        (("GPU:0", "CPU:1"), GPUS, ("GPU:0", "CPU:1")),
    ],
)
def test_devices_are_chosen_among_those_there_are(wanted, gpus, chosen):
    assert choose_devices(wanted, gpus, CPUS) == chosen


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        (1, (), "`devices` asks for 1 GPU, and TensorFlow sees none."),
        (2, (), "`devices` asks for 2 GPUs, and TensorFlow sees none."),
        (4, GPUS, "`devices` asks for 4 GPUs, and TensorFlow sees 3."),
        (("GPU:0",), (), "`devices` names GPU:0, and TensorFlow has CPU:0, CPU:1."),
        (
            ("GPU:0", "GPU:7"),
            GPUS,
            "`devices` names GPU:7, and TensorFlow has GPU:0, GPU:1, GPU:2, CPU:0, CPU:1.",
        ),
        (("TPU:0",), (), "`devices` names TPU:0, and TensorFlow has CPU:0, CPU:1."),
    ],
)
def test_devices_that_are_not_there_are_an_error(wanted, gpus, message):
    with pytest.raises(NoDeviceError) as caught:
        choose_devices(wanted, gpus, CPUS)
    assert caught.value.message == message
    assert caught.value.details["arg"] == "devices"
