"""The real check over stand-ins for the driver, and over children that misbehave.

Stand-ins are loaded by the real probing code; the computer's files lie in a folder.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from children import run_script
from computers import make_computer
from nightly import few
from recorded import HEALTHY, UNLISTED, change, judge
from stub_driver import stub_environment

from gpukeras.diagnostics import collect
from gpukeras.diagnostics.collect import explain_no_import, explain_no_proof, explain_skip
from gpukeras.diagnostics.rules.session import find_unheeded
from gpukeras.system import pip
from gpukeras.system.facts import parse_facts
from gpukeras.system.packages import read_build

CHECK = """
from dataclasses import asdict
from gpukeras.diagnostics.verdict import diagnose
from gpukeras.diagnostics.collect import read_facts
from gpukeras.system.facts import parse_facts
facts = read_facts({session!r}, root={root!r})
answer = {{"facts": facts, "diagnosis": asdict(diagnose(parse_facts(facts)))}}
"""


def run_program(arguments, environment):
    """The JSON of the last line that a program of this Python writes."""
    child = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=600
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def run_code(code, environment):
    """What a script calls `answer`, in a process of its own."""
    source = textwrap.dedent(code)
    source += "\nimport json; print('\\n' + json.dumps(answer, default=str))"
    return run_program(["-c", source], environment)


def check(root, environment, session=None):
    """What the real check finds on that computer with that driver."""
    return run_code(CHECK.format(root=str(root), session=session), environment)


def judge_with(driver, facts):
    """What is made of facts if the driver is that one."""
    return judge(change(facts, {name: driver[name] for name in ("cuda", "nvml")}))


def ask_driver(**settings):
    return run_program(["-m", "gpukeras.diagnostics.probes.driver"], stub_environment(**settings))


def is_cuda_build():
    return read_build()["is_cuda_build"]


needs_cpu_build = pytest.mark.skipif(is_cuda_build(), reason="TensorFlow is built with CUDA")


@pytest.fixture
def computer(tmp_path):
    return make_computer(tmp_path)


# What the driver answers -------------------------------------------------------------------------


# One for each cause, and where a cause has several kinds of evidence, for each kind.
ANSWERS = [
    ({"STUB_CUINIT": 803}, "A5", "803"),
    ({"STUB_CUINIT": 804}, "A7", "804"),
    ({"STUB_CUINIT": 802}, "A8", "802"),
    ({"STUB_CUINIT": 999}, "A6", "999"),
    ({"STUB_NVML_INIT": 4}, "A9", "NVML returns 4"),
    ({"STUB_CUINIT": 805}, "B9", "805"),
    ({"STUB_NVML_DEVICE": 15}, "A10", "15"),
    ({"STUB_CUINIT": 34}, "A15", "34 (CUDA_ERROR_STUB_LIBRARY); libcuda is /"),
    ({"STUB_CUINIT": 46}, "A16", "46 (CUDA_ERROR_DEVICE_UNAVAILABLE)"),
    ({"STUB_COUNT_STATUS": 100}, "B11", "cuDeviceGetCount returns 100"),
    ({"STUB_COUNT": 0}, "B11", "the PCI bus has 1 NVIDIA GPU"),
    ({"STUB_CUINIT": 999, "STUB_NVML_INIT": 999}, "A16", "NVML returns 999"),
    ({"libraries": ("nvml",)}, "B12", "libcuda.so.1: cannot open shared object file"),
]
# What the driver itself returns is 0 in all of these.
ANSWERS_OF_0 = ({"STUB_NVML_DEVICE": 15}, {"STUB_COUNT": 0})
MORE_ANSWERS = [
    ({"STUB_NVML_INIT": 18}, "A5", "18"),
    ({"STUB_CUINIT": 3}, "A16", "3 (CUDA_ERROR_NOT_INITIALIZED): initialization error"),
    ({"STUB_CUINIT": 100}, "B11", "the PCI bus has 1 NVIDIA GPU"),
    ({"STUB_CUINIT": 101}, "A16", "101 (CUDA_ERROR_INVALID_DEVICE)"),
    ({"STUB_CUINIT": 12345}, "A16", "cuInit returns 12345"),
    ({"STUB_COUNT_STATUS": 999}, "A16", "cuDeviceGetCount returns 999"),
    ({"STUB_CUINIT": 999, "libraries": ("cuda",)}, "A16", "cuInit returns 999"),
]


@pytest.mark.varies
@pytest.mark.parametrize(("settings", "cause", "said"), few([*ANSWERS, *MORE_ANSWERS], *ANSWERS))
def test_a_drivers_answer_names_the_cause(computer, settings, cause, said):
    found = check(computer, stub_environment(**settings))
    diagnosis = found["diagnosis"]
    assert (diagnosis["verdict"], diagnosis["cause_id"]) == ("NOT USED", cause)
    assert said in diagnosis["evidence"][0]
    assert any(found["facts"][part].get("simulated") is True for part in ("cuda", "nvml"))
    assert found["facts"]["skipped"].keys() == {"listings", "session", "compute"}
    assert found["facts"]["tensorflow"] == {"imported": False}
    statuses = {finding["id"]: finding["status"] for finding in diagnosis["findings"]}
    assert statuses["driver"] == ("ok" if settings in ANSWERS_OF_0 else "note")


@pytest.mark.varies
@pytest.mark.parametrize(
    ("files", "settings", "cause"),
    [
        ({"gpus": 0, "driver": ""}, {"STUB_CUINIT": 100, "STUB_COUNT": 0}, "A1"),
        ({"gpus": 0, "driver": ""}, {"STUB_COUNT": 0}, "A1"),
        ({"container": True}, {"STUB_NVML_INIT": 999}, "B3"),
    ],
)
def test_the_same_answer_means_something_else_on_another_computer(tmp_path, files, settings, cause):
    found = check(make_computer(tmp_path, **files), stub_environment(**settings))
    assert found["diagnosis"]["cause_id"] == cause
    assert found["facts"]["nvml"]["simulated"] is True


@pytest.mark.varies
@needs_cpu_build
@pytest.mark.parametrize(
    ("settings", "cause", "said"),
    [
        ({"STUB_DRIVER_VERSION": 11040}, "A3", "runs CUDA up to 11.4, TensorFlow needs CUDA 12.0"),
        ({"STUB_CAPABILITY": "5.2"}, "C18", "5.2, and TensorFlow with CUDA has code from 6.0 on"),
    ],
)
def test_what_the_build_with_cuda_would_meet_is_said_beside_the_one_without(
    computer, settings, cause, said
):
    diagnosis = check(computer, stub_environment(**settings))["diagnosis"]
    assert diagnosis["cause_id"] == "C1"
    findings = {finding["id"]: finding for finding in diagnosis["findings"]}
    assert (findings[cause]["status"], said in findings[cause]["evidence"]) == ("problem", True)


@pytest.mark.varies
@pytest.mark.parametrize("value", few(["-1", "", "7"], "-1", ""))
def test_a_variable_that_hides_the_card_is_proven_by_leaving_it_out(computer, value):
    found = check(computer, stub_environment(CUDA_VISIBLE_DEVICES=value))
    assert found["facts"]["cuda"]["count"] in (0, None)
    assert found["facts"]["cuda_shown"]["count"] == 1
    # On this computer TensorFlow may be built without CUDA: then that is mended first.
    build = {"build": HEALTHY["build"], "requirements": [], "libraries": HEALTHY["libraries"]}
    diagnosis = judge(change(found["facts"], build))
    assert (diagnosis.verdict, diagnosis.cause_id) == ("NOT USED", "D1")


def test_nvml_that_is_missing_is_the_cause_once_tensorflow_lists_no_gpu():
    driver = ask_driver(libraries=("cuda",))
    assert driver["nvml"]["loaded"] is False
    diagnosis = judge_with(driver, UNLISTED)
    assert diagnosis.cause_id == "B2"
    assert "libnvidia-ml.so.1: cannot open shared object file" in diagnosis.evidence[0]


def test_a_healthy_driver_leads_on_to_the_build_of_tensorflow(computer):
    found = check(computer, stub_environment())
    assert found["facts"]["cuda"]["count"] == 1
    assert found["diagnosis"]["cause_id"] == ("C1" if not is_cuda_build() else None)


LISTED = change(HEALTHY, {"tensorflow": {"started": False}, "proof": None, "use": None})


# What TensorFlow lists over such a driver is recorded: its wheel with CUDA has gigabytes.
@pytest.mark.parametrize(
    ("settings", "cause", "said"),
    [
        ({"STUB_DRIVER_VERSION": 11040}, "A3", ["11.4"]),
        ({"STUB_COMPUTE_MODE": 3, "STUB_PID": os.getpid()}, "B8", ["exclusive"]),
        ({"STUB_COMPUTE_MODE": 2}, "B8", ["rohibited"]),
        (
            {"STUB_FREE_MIB": 200, "STUB_TOTAL_MIB": 24576, "STUB_PID": os.getpid()},
            "B10",
            ["200"],
        ),
        # Before anything is tried:
        (
            {"STUB_CAPABILITY": "12.0", "STUB_DRIVER_VERSION": 12080},
            "Blackwell",
            ["compute capability 12.0", "gpukeras trains without XLA here"],
        ),
    ],
    ids=["old driver", "exclusive", "prohibited", "full", "Blackwell"],
)
def test_a_driver_that_lists_a_card_which_cannot_be_used(settings, cause, said):
    driver = ask_driver(**settings)
    assert driver["cuda"]["simulated"] is True
    diagnosis = judge_with(driver, LISTED)
    assert diagnosis.verdict in ("NOT USED", "UNPROVEN")
    (finding,) = [finding for finding in diagnosis.findings if finding.id == cause]
    assert finding.status == "problem"
    for words in said:
        assert words in finding.evidence


# Children that misbehave -------------------------------------------------------------------------


@pytest.mark.varies
@pytest.mark.parametrize("how", [-1, -2])
def test_a_driver_that_ends_or_hangs_its_process_is_not_determined(computer, how, tmp_path):
    script = """
    from dataclasses import asdict
    from gpukeras.diagnostics import child_probes as probing
    probing.DRIVER_LIMIT_S = 8
    facts = {"unread": {}, "build": {}, "python": {}}
    with probing.quiet_environment() as environment:
        probing.read_driver_answers(facts, environment)
    answer = facts
    """
    found = run_code(script, stub_environment(STUB_CUINIT=how))
    assert found["cuda"] is None
    assert found["nvml"]["loaded"] is True
    reason = {-1: "killed by SIGABRT", -2: "did not end within 8 s"}[how]
    assert reason in found["unread"]["cuda"]


FAKE_PYTHON = {
    "garbage": "#!/bin/sh\nhead -c 100000 /dev/urandom\n",
    "braces": '#!/bin/sh\necho \'{"cuda": 3, "nvml": [], "gpus": 7}\'\necho \'{\'\n',
    "silent": "#!/bin/sh\nexit 0\n",
    "killed": "#!/bin/sh\nkill -9 $$\n",
    "failed": "#!/bin/sh\necho 'no such thing' >&2\nexit 3\n",
}


@pytest.mark.varies
@pytest.mark.parametrize("kind", FAKE_PYTHON)
def test_a_python_that_answers_nonsense_leads_to_no_cause(computer, tmp_path, kind):
    # The session's Python is what the children run; here it is a program that misbehaves.
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON[kind])
    fake.chmod(0o755)
    found = check(computer, stub_environment(), {"python": str(fake)})
    diagnosis = found["diagnosis"]
    assert diagnosis["cause_id"] in (None, "C1")  # C1 is told by files alone
    assert found["facts"]["cuda"] is None
    assert found["facts"]["unread"]["cuda"]


def test_without_a_place_to_write_the_check_goes_on(computer):
    script = f"""
    import resource, tempfile
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no process of this tree may write a file
    tempfile.tempdir = "/nowhere"
    from gpukeras.diagnostics.verdict import diagnose
    from gpukeras.diagnostics.collect import read_facts
    from gpukeras.system.facts import parse_facts
    facts = read_facts(root={str(computer)!r})
    verdict = diagnose(parse_facts(facts)).verdict
    answer = [facts["cuda"]["count"], verdict, facts["unread"]]
    """
    count, verdict, unread = run_code(script, stub_environment())
    assert (count, verdict, unread) == (1, "NOT USED", {})


def test_nothing_is_written_outside_the_temporary_folder(computer, tmp_path):
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    environment = stub_environment(HOME=home, TMPDIR=temporary, XDG_CACHE_HOME=home / "cache")
    check(computer, environment)
    assert list(home.rglob("*")) == []
    assert list(temporary.rglob("*")) == []


# Which layers are needed -------------------------------------------------------------------------


def test_a_session_that_lists_a_gpu_needs_no_other_list():
    assert explain_skip("listings", parse_facts(LISTED)) == "this session lists a GPU already"
    assert explain_skip("session", parse_facts(LISTED)) == ""
    assert explain_skip("compute", parse_facts(LISTED)) == ""


def test_a_proven_cause_ends_the_search():
    unseen = {"physical_gpus": None, "visible_gpus": None}
    broken = {"cuda": {"init": 803}, "tensorflow": unseen, "listings": None}
    facts = change(LISTED, broken, {"skipped": {}})
    collect.read_layers(facts, {})
    assert facts["skipped"] == dict.fromkeys(collect.LAYERS, "A5 was found before")


def test_tensorflow_is_not_imported_where_it_ended_a_child():
    killed = {"as it is": {"ok": None, "error": "killed by SIGSEGV"}}
    facts = change(HEALTHY, {"tensorflow": {"imported": False}, "listings": killed})
    assert "not safe here: killed by SIGSEGV" in explain_no_import(parse_facts(facts))
    assert explain_no_import(parse_facts(HEALTHY)) == ""
    mended = change(facts, {"listings": {"preloaded": {"ok": True, "error": ""}}})
    assert explain_no_import(parse_facts(mended)) == ""


def test_an_exclusive_gpu_that_this_session_holds_is_not_asked_again():
    busy = {"nvml": {"devices": [{"compute_mode": 3}]}, "tensorflow": {"started": True}}
    assert "one process at a time" in explain_no_proof(parse_facts(change(HEALTHY, busy)))
    assert explain_no_proof(parse_facts(change(HEALTHY, {"nvml": busy["nvml"]}))) == ""
    full = {"nvml": {"devices": [{"free_bytes": 2.0**28}]}, "tensorflow": {"started": True}}
    assert "holds the GPU's memory" in explain_no_proof(parse_facts(change(HEALTHY, full)))
    assert "simulated" in explain_no_proof(
        parse_facts(change(HEALTHY, {"cuda": {"simulated": True}}))
    )
    assert "lists no GPU" in explain_no_proof(parse_facts({}))


# This computer -----------------------------------------------------------------------------------


@pytest.mark.varies
@pytest.mark.parametrize("session", [None, {}, [], {"environment": []}, {"python": None}, "odd"])
def test_an_odd_session_is_no_obstacle(session):
    from gpukeras.diagnostics.collect import read_facts

    assert read_facts(session)["unread"] == {}


@pytest.mark.slow
@pytest.mark.tf
def test_a_model_of_ones_own_is_trained_for_a_few_steps_on_the_cpu_too():
    script = """
    from small_fits import make_dataset, make_model
    from gpukeras.diagnostics import check as diagnosis
    found = diagnosis.check(None, make_model(), make_dataset(64))
    answer = [found.verdict, found.facts["use"]["device"], found.facts["use"]["variables"]]
    """
    found = run_script(script, CUDA_VISIBLE_DEVICES="-1")
    assert found[:2] == ["NOT USED", "CPU:0"]


def test_a_python_behind_a_link_is_the_one_that_was_asked_for(tmp_path):
    (tmp_path / "link").symlink_to(sys.prefix)
    asked = {"requested_python": str(tmp_path / "link/bin/python")}
    assert pip.read_python(asked)["is_requested"]
    other = {"requested_python": str(tmp_path / "other/bin/python")}
    assert not pip.read_python(other)["is_requested"]
    unlisted = {"build": {"is_cuda_build": False}, "session": asked}
    assert find_unheeded(parse_facts({**unlisted, "python": pip.read_python(asked)})) == ""
    assert find_unheeded(
        parse_facts({**unlisted, "session": other, "python": pip.read_python(other)})
    )
