import pytest

from gpukeras.backend.mixed_precision import Gpu, choose_policy, parse_capability


@pytest.mark.parametrize(
    ("gpus", "policy"),
    [
        ([], "float32"),  # the CPU
        (["3.5"], "float32"),
        (["6.1"], "float32"),  # GTX 1080
        (["7.0"], "mixed_float16"),  # V100
        (["7.5"], "mixed_float16"),  # T4
        (["8.0"], "mixed_bfloat16"),  # A100
        (["8.6"], "mixed_bfloat16"),  # RTX 3090
        (["9.0"], "mixed_bfloat16"),  # H100
        (["12.0"], "mixed_bfloat16"),  # RTX 5090: 12 is more than 8
        (["9.0", "7.5"], "mixed_float16"),
        (["8.6", "6.1"], "float32"),
        ([""], "float32"),
        (["8.6", ""], "float32"),
    ],
)
def test_auto_goes_by_the_weakest_gpu(gpus, policy):
    precision = choose_policy("auto", list(map(Gpu, gpus)))
    assert precision.policy == policy
    assert precision.reason


@pytest.mark.parametrize("wanted", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("gpus", [[], ["6.1"], ["9.0"], [""]])
def test_a_wish_is_honoured(wanted, gpus):
    precision = choose_policy(wanted, list(map(Gpu, gpus)))
    assert precision.policy == wanted
    assert precision.reason.startswith("as asked")


@pytest.mark.parametrize(
    ("wanted", "gpus", "warning"),
    [
        ("mixed_float16", [], "slow on a CPU"),
        ("mixed_bfloat16", ["7.5"], "compute capability 7.5 is below 8.0"),
        ("mixed_float16", ["9.0", "6.1"], "6.1 is below 7.0"),
        ("float64", ["9.0"], "many times slower"),
    ],
)
def test_a_wish_that_does_not_suit_is_warned_of(wanted, gpus, warning):
    assert warning in choose_policy(wanted, list(map(Gpu, gpus))).reason


def test_a_card_without_tensor_cores_computes_in_float32():
    small = Gpu("7.5", "NVIDIA GeForce GTX 1650")
    precision = choose_policy("auto", [Gpu("8.6", "NVIDIA GeForce RTX 3060"), small])
    assert precision.policy == "float32"
    lacks = "GTX 1650 has no tensor cores (chip TU117)"
    assert precision.reason.endswith(f"{lacks}: float16 takes 2 to 4 times as long as float32")
    assert lacks in choose_policy("mixed_float16", [small]).reason
    assert choose_policy("auto", [Gpu("7.5", "Tesla T4")]).policy == "mixed_float16"


@pytest.mark.parametrize(
    ("text", "value"), [("8.6", 8.6), ("12.0", 12.0), ("", None), (None, None)]
)
def test_capabilities_are_parsed(text, value):
    assert parse_capability(text) == value
