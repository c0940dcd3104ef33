"""What gpu_setup() does about each setting, and why: decisions, with no device touched."""

import pytest
from small_fits import make_model

from gpukeras.backend import devices, runtime
from gpukeras.backend.config import (
    Device,
    SetupFacts,
    choose_backend,
    choose_device,
    memory_in_effect,
    parse_device,
    place_device,
    plan_setup,
)
from gpukeras.backend.cuda_preload import Preload
from gpukeras.core.errors import NoDeviceError, SpecError
from gpukeras.core.options import SetupSpec
from gpukeras.engine.engine_facts import read_engine_facts

CPU = Device("CPU:0", "CPU", "a processor", "", 2.0**35, True)


def gpu(index, capability="8.6", visible=True):
    return Device(f"GPU:{index}", "GPU", "a GPU", capability, 2.0**34, visible)


def facts(*gpus, **known):
    return SetupFacts((CPU, *gpus), **known)


def plan(spec, known):
    return {setting.name: setting for setting in plan_setup(spec, known).settings}


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("auto", ("auto", None)),
        ("cpu", ("CPU", None)),
        ("gpu", ("GPU", None)),
        ("GPU:0", ("GPU", 0)),
        ("gpu:12", ("GPU", 12)),
        ("/GPU:0", ("GPU", 0)),
        ("/device:GPU:1", ("GPU", 1)),
        ("/physical_device:GPU:1", ("GPU", 1)),
        (" CPU:0 ", ("CPU", 0)),
    ],
)
def test_device_names_are_parsed(text, parsed):
    assert parse_device(text) == parsed


@pytest.mark.parametrize("text", ["", "tpu", "GPU:", "GPU:-1", "GPU:x", "auto:0", "GPU0", None, 0])
def test_what_names_no_device_is_a_spec_error(text):
    with pytest.raises(SpecError, match="`device` must be") as caught:
        parse_device(text)
    assert caught.value.details == {"arg": "device"}


@pytest.mark.parametrize(
    ("wanted", "gpus", "name", "reason"),
    [
        ("auto", [], "CPU:0", "finds no GPU"),
        ("auto", ["GPU:0"], "GPU:0", "the GPU"),
        ("auto", ["GPU:0", "GPU:1"], "GPU:0", "the first of 2 GPUs"),
        ("auto", ["GPU:1"], "GPU:1", "the GPU"),  # GPU:0 is hidden
        ("gpu", ["GPU:1"], "GPU:1", "as asked"),
        ("gpu:1", ["GPU:0", "GPU:1"], "GPU:1", "as asked"),
        ("cpu", ["GPU:0"], "CPU:0", "as asked"),
    ],
)
def test_devices_are_chosen_with_a_reason(wanted, gpus, name, reason):
    choice = choose_device(wanted, gpus)
    assert choice.name == name
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("wanted", "gpus"), [("gpu", []), ("GPU:0", []), ("GPU:2", ["GPU:0", "GPU:1"]), ("cpu:1", [])]
)
def test_a_device_that_is_not_there_names_wanted_and_found(wanted, gpus):
    with pytest.raises(NoDeviceError) as caught:
        choose_device(wanted, gpus)
    assert caught.value.details == {"wanted": wanted, "found": ["CPU:0", *gpus]}
    assert wanted in caught.value.message
    assert "CPU:0" in caught.value.message
    assert "gpu_check()" in caught.value.hint


@pytest.mark.parametrize(
    ("requested", "imported", "value", "status", "reason"),
    [
        ("auto", False, "tensorflow", "unchanged", "as Keras is configured"),
        ("tensorflow", True, "tensorflow", "unchanged", "as asked"),
        ("jax", False, "jax", "applied", "as asked"),
        ("jax", True, "tensorflow", "too late", "Keras has started on it; restart R"),
    ],
)
def test_the_backend_changes_until_keras_is_imported(requested, imported, value, status, reason):
    setting = choose_backend(requested, "tensorflow", imported)
    assert (setting.value, setting.status) == (value, status)
    assert reason in setting.reason


def test_tensorflow_counts_visible_gpus_anew():
    assert place_device("GPU:1", ["GPU:1"]) == "GPU:0"
    assert place_device("GPU:2", ["GPU:0", "GPU:2"]) == "GPU:1"
    assert place_device("CPU:0", ["GPU:1"]) == "CPU:0"


# The plan ----------------------------------------------------------------------------------------


def test_without_a_gpu_auto_falls_back_and_says_so():
    settings = plan(SetupSpec(), facts())
    assert settings["device"].value == "CPU:0"
    assert "finds no GPU" in settings["device"].reason
    assert settings["visible_devices"].status == "not needed"
    assert settings["memory"].status == "not needed"
    assert settings["precision"].value == "float32"


def test_without_a_gpu_gpu_is_an_error():
    with pytest.raises(NoDeviceError):
        plan_setup(SetupSpec(device="gpu"), facts())


def test_a_gpu_is_set_up_whole():
    settings = plan(SetupSpec(seed=1, threads=4), facts(gpu(0)))
    found = {name: (setting.value, setting.status) for name, setting in settings.items()}
    assert found == {
        "device": ("GPU:0", "applied"),
        "visible_devices": (("GPU:0",), "unchanged"),
        "memory": ("growth", "applied"),
        "threads": (4, "applied"),
        "precision": ("mixed_bfloat16", "applied"),
        "tf32": (True, "unchanged"),
        "jit": ("auto", "applied"),
        "seed": (1, "applied"),
        "deterministic": (False, "unchanged"),
    }
    assert all(setting.reason for setting in settings.values())


@pytest.mark.parametrize(
    ("device", "visible"),
    [
        ("auto", ("GPU:0", "GPU:1")),
        ("gpu", ("GPU:0", "GPU:1")),
        ("GPU:1", ("GPU:1",)),
        ("cpu", ()),
    ],
)
def test_gpus_that_are_not_wanted_stay_free(device, visible):
    settings = plan(SetupSpec(device=device), facts(gpu(0), gpu(1)))
    assert settings["visible_devices"].value == visible


def test_only_the_gpus_used_decide_about_precision():
    both = facts(gpu(0, "8.6"), gpu(1, "6.1"))
    assert plan(SetupSpec(), both)["precision"].value == "float32"
    assert plan(SetupSpec(device="GPU:0"), both)["precision"].value == "mixed_bfloat16"
    assert plan(SetupSpec(device="cpu"), both)["precision"].value == "float32"


def test_hidden_gpus_can_be_chosen_until_tensorflow_starts():
    hidden = (gpu(0), gpu(1, visible=False))
    assert plan(SetupSpec(device="GPU:1"), facts(*hidden))["device"].value == "GPU:1"
    with pytest.raises(NoDeviceError):
        plan_setup(SetupSpec(device="GPU:1"), facts(*hidden, started=True))


def test_what_comes_too_late_is_told_with_what_is_in_effect():
    spec = SetupSpec(device="cpu", memory=2048, threads=4, seed=1, deterministic=True)
    settings = plan(spec, facts(gpu(0), started=True, threads=(2, 2), memory="growth"))
    assert (settings["visible_devices"].status, settings["visible_devices"].value) == (
        "too late",
        ("GPU:0",),
    )
    assert (settings["threads"].status, settings["threads"].value) == ("too late", 2)
    assert "restart R and call gpu_setup() first" in settings["threads"].reason
    assert settings["seed"].status == "applied"
    assert settings["deterministic"].status == "applied"
    memory = plan(SetupSpec(memory=2048), facts(gpu(0), started=True, memory="growth"))["memory"]
    assert (memory.status, memory.value) == ("too late", "growth")


def test_nothing_is_too_late_when_it_is_already_so():
    known = facts(gpu(0), started=True, memory="growth", threads=(2, 2), policy="mixed_bfloat16")
    settings = plan(SetupSpec(threads=2), known)
    assert "too late" not in {setting.status for setting in settings.values()}
    assert settings["precision"].status == "unchanged"


def test_a_policy_after_the_start_says_which_layers_it_holds_for():
    reason = plan(SetupSpec(), facts(gpu(0), started=True))["precision"].reason
    assert reason.endswith("for layers made from now on")


@pytest.mark.parametrize(
    ("now", "wanted", "status", "value"),
    [
        ("all", "growth", "applied", "growth"),
        ("growth", "all", "applied", "all"),
        ("growth", "growth", "unchanged", "growth"),
        ("growth", 1024, "applied", 1024),
        (1024, 2048, "applied", 2048),
        (1024, "growth", "too late", 1024),  # TensorFlow takes no limit back
    ],
)
def test_memory_settings_follow_what_tensorflow_allows(now, wanted, status, value):
    memory = plan(SetupSpec(memory=wanted), facts(gpu(0), memory=now))["memory"]
    assert (memory.status, memory.value) == (status, value)


@pytest.mark.parametrize(
    ("growth", "limit", "forced", "effect"),
    [
        (None, None, None, "all"),
        (True, None, None, "growth"),
        (False, None, None, "all"),
        (None, None, "true", "growth"),
        (True, None, "false", "all"),
        (None, 512, "true", 512),
    ],
)
def test_memory_in_effect_is_read_as_tensorflow_reads_it(growth, limit, forced, effect):
    assert memory_in_effect(growth, limit, forced) == effect


@pytest.mark.parametrize(
    ("wanted", "capability", "cuda", "value"),
    [
        ("auto", "12.0", "12.5.1", False),  # would abort the process
        ("auto", "10.0", "12.5.1", False),
        ("auto", "12.0", "12.8", "auto"),
        ("auto", "12.0", "13.0.1", "auto"),
        ("auto", "9.0", "12.5.1", "auto"),
        ("auto", "12.0", "", "auto"),  # not determined
        (True, "12.0", "12.5.1", True),  # a wish is honoured
        (False, "9.0", "12.5.1", False),
    ],
)
def test_xla_is_kept_off_gpus_that_it_would_crash_on(wanted, capability, cuda, value):
    settings = plan(SetupSpec(jit=wanted), facts(gpu(0, capability), cuda_version=cuda))
    assert settings["jit"].value == value


@pytest.mark.parametrize(
    ("asked", "known", "measures"),
    [
        ({}, {}, True),
        ({"seed": 0}, {}, False),
        ({"deterministic": True}, {}, False),
        ({}, {"seeded": True}, False),  # keras3::set_random_seed() before
        ({}, {"deterministic": True}, False),
        ({"seed": 1, "jit": True}, {}, None),
    ],
)
def test_a_setup_says_whether_xla_is_measured(asked, known, measures):
    reasons = {
        True: "gpu_fit() measures whether it pays",
        False: "with a seed, gpu_fit() does not measure whether it pays",
        None: "as asked",
    }
    assert plan(SetupSpec(**asked), facts(**known))["jit"].reason == reasons[measures]


@pytest.mark.tf
def test_the_seed_that_keras_has_is_a_fact_of_a_setup(monkeypatch):
    monkeypatch.undo()
    runtime.keras().utils.set_random_seed(7)
    known = devices.read_setup_facts()
    assert known.seeded
    repeats = read_engine_facts(make_model(), "auto").repeats
    assert plan(SetupSpec(), known)["jit"].reason.startswith("with a seed") == repeats


@pytest.mark.parametrize(
    ("wanted", "capability", "now", "value", "status", "reason"),
    [
        ("auto", "8.0", True, True, "unchanged", "keep 10 bits"),
        ("auto", "8.6", False, False, "unchanged", "keep all 23 bits"),
        ("auto", "7.5", True, True, "not needed", "no GPU of compute capability 8.0"),
        ("auto", "", True, True, "not needed", "no GPU of compute capability 8.0"),
        (False, "9.0", True, False, "applied", "keep all 23 bits"),
        (False, "9.0", False, False, "unchanged", "keep all 23 bits"),
        (True, "7.0", False, True, "applied", "keep 10 bits"),
    ],
)
def test_float32_products_on_tensor_cores(wanted, capability, now, value, status, reason):
    setting = plan(SetupSpec(tf32=wanted), facts(gpu(0, capability), tf32=now))["tf32"]
    assert (setting.value, setting.status) == (value, status)
    assert reason in setting.reason


@pytest.mark.tf
def test_tf32_is_switched_for_real():
    before = runtime.tensor_float_32()
    try:
        for allowed in (False, True):
            devices.setup(device="cpu", tf32=allowed)
            assert runtime.tensor_float_32() is allowed
    finally:
        devices.setup(device="cpu", tf32=before)


def test_determinism_needs_a_seed_and_stays():
    settings = plan(SetupSpec(deterministic=True), facts())
    assert (settings["seed"].value, settings["seed"].status) == (0, "applied")
    late = plan(SetupSpec(), facts(deterministic=True))["deterministic"]
    assert (late.value, late.status) == (True, "too late")


@pytest.mark.parametrize(
    ("status", "said"),
    [("done", "loaded 2 CUDA libraries first, so."), ("failed", "before TensorFlow: so.")],
)
def test_setup_says_which_libraries_gpukeras_loaded(status, said):
    (note,) = devices.explain_preload(Preload(status, ("/a.so", "/b.so"), "so"))
    assert note.endswith(said)


@pytest.mark.parametrize("status", ["not needed", "too late", "planned"])
def test_setup_is_silent_about_libraries_that_were_not_loaded(status):
    assert devices.explain_preload(Preload(status, (), "so")) == []
