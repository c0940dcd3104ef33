"""Every cause on recorded facts: detected, the only root, and never where all is well."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import few
from recorded import BASES, CASES, HEALTHY, JAX, UNLISTED, build_facts, change, judge

from gpukeras.diagnostics.check import format_check
from gpukeras.diagnostics.rules.catalog import CAUSES
from gpukeras.diagnostics.rules.rule import STAGES, fill_fix
from gpukeras.diagnostics.verdict import name_situation
from gpukeras.system.facts import parse_facts

BY_ID = {cause.id: cause for cause in CAUSES}
ROOTS = [case for case in CASES if case.get("root")]
FINDINGS = [case for case in CASES if case.get("finding")]


WHOLE = [{"base": "healthy"}, {"base": "unlisted"}]
NO_PCI_GPU = {"hardware": {"nvidia_gpus": []}}
NO_DRIVER = {
    "driver": {"version": "", "device_nodes": []},
    "cuda": {"loaded": False, "init": None, "count": None, "devices": None},
    "nvml": {"loaded": False, "init": None, "count": None, "devices": None},
}
CPU_BUILD = {"build": {"is_cuda_build": False, "cuda_version": None}}


def visible(c, python=None, r=None):
    return {"environment": {"CUDA_VISIBLE_DEVICES": {"c": c, "python": python, "r": r}}}


def find_claims(facts):
    """The causes that claim to be the root: of the first stage in which one is detected."""
    situation, found = name_situation(parse_facts(facts)), []
    for cause in CAUSES:  # in the order of their stages
        if found and cause.stage != found[0].stage:
            break
        if situation in cause.situations and cause.find(parse_facts(facts)):
            found.append(cause)
    return [cause.id for cause in found]


def failing(checks):
    """What does not hold, of pairs of a name and what must hold of it."""
    return [f"{name}: {what}" for name, held in checks for what, holds in held.items() if not holds]


def look_at_root(case):
    facts = build_facts(case)
    found = judge(facts)
    return {
        "the cause": found.cause_id == case["root"],
        "the verdict": found.verdict == case.get("verdict", "NOT USED"),
        "the evidence": case.get("evidence", "") in " ".join(found.evidence),
        "a title and a fix": bool(found.cause and found.fix),
        "all is filled in": "{" not in found.fix + found.cause,
        "one finding": [one.id for one in found.findings].count(case["root"]) == 1,
        "no other claims to be the root": find_claims(facts) == [case["root"]],
    }


@pytest.mark.costly
def test_recorded_facts_have_their_root_and_no_other():
    assert len(ROOTS) > 150
    assert failing((case["name"], look_at_root(case)) for case in ROOTS) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair", few([itertools.combinations, itertools.permutations], itertools.combinations)
)
def test_two_things_broken_at_once_have_one_root(pair):
    built = {one["name"]: build_facts(one) for one in ROOTS}
    for one, other in pair(ROOTS, 2):
        if one["base"] == other["base"]:
            facts = change(built[one["name"]], other["changes"])
            assert len(find_claims(facts)) <= 1, (one["name"], other["name"])


def look_at_finding(case):
    found = {one.id: one.evidence for one in judge(build_facts(case)).findings}
    return {"the evidence": case.get("evidence", "") in found.get(case["finding"], [])}


def test_recorded_facts_have_their_finding():
    assert len(FINDINGS) > 40
    assert failing((case["name"], look_at_finding(case)) for case in FINDINGS) == []


def test_every_cause_is_recorded_and_has_its_own_id():
    ids = [cause.id for cause in CAUSES]
    assert len(set(ids)) == len(ids)
    assert {case.get("root") or case["finding"] for case in CASES} == set(ids)


def test_cases_say_where_they_are_from_and_have_their_own_names():
    assert len({case["name"] for case in CASES}) == len(CASES)
    assert {case["origin"] for case in CASES} <= {"run", "stub", "source"}
    assert {case["base"] for case in CASES} <= set(BASES)


def look_at_cause(cause):
    return {
        "a sentence": cause.title.endswith((".", "{evidence}")),
        "a fix": bool(cause.fix),
        "says what it detects": cause.detect.__doc__.startswith(f"Detects {cause.id}: "),
        "silent where all is well": cause.detect(parse_facts(HEALTHY)) is None
        and cause.find(parse_facts(JAX)) is None,
        "silent where nothing is known": cause.detect(parse_facts({})) is None,
    }


def test_causes_are_written_for_people_and_detected_on_evidence_alone():
    assert len(CAUSES) > 90
    assert failing((cause.id, look_at_cause(cause)) for cause in CAUSES) == []


def test_causes_are_asked_for_in_the_order_of_the_stages():
    order = [list(STAGES).index(cause.stage) for cause in CAUSES]
    assert order == sorted(order)


def replace_leaf(facts, path, value):
    if not path:
        return value
    if not isinstance(facts, dict):
        return facts
    return {**facts, path[0]: replace_leaf(facts.get(path[0]), path[1:], value)}


def list_paths(facts, path=()):
    if isinstance(facts, dict) and facts:
        return [found for key, part in facts.items() for found in list_paths(part, (*path, key))]
    return [path]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.costly
@given(st.data())
def test_odd_missing_and_conflicting_facts_never_end_the_check(data):
    case = data.draw(st.sampled_from([*CASES, *WHOLE]))
    other = data.draw(st.sampled_from(CASES))
    facts = change(build_facts(case), other.get("changes", {}))
    for _ in range(data.draw(st.integers(0, 6))):
        path = data.draw(st.sampled_from(list_paths(facts)))
        cut = data.draw(st.integers(1, len(path)))
        facts = replace_leaf(facts, path[:cut], data.draw(ODD))
    diagnosis = judge(facts)
    assert diagnosis.verdict in ("CONFIRMED", "PARTIAL", "UNPROVEN", "NOT USED")
    assert (diagnosis.cause is None) == (diagnosis.cause_id is None) == (diagnosis.fix == "")
    assert diagnosis.evidence
    assert all(format_check(diagnosis))
    if diagnosis.cause_id is not None:
        assert BY_ID[diagnosis.cause_id].detect(parse_facts(facts))


def test_a_missing_part_is_never_taken_as_a_no():
    for name in HEALTHY.keys() - {"tensorflow"}:
        diagnosis = judge({key: part for key, part in UNLISTED.items() if key != name})
        assert (diagnosis.verdict, diagnosis.cause) == ("NOT USED", None), name


def test_other_causes_are_notes_beside_the_root():
    diagnosis = judge(change(UNLISTED, NO_PCI_GPU, NO_DRIVER, CPU_BUILD))
    statuses = {finding.id: finding.status for finding in diagnosis.findings}
    assert statuses["A1"] == "problem"
    assert statuses["C1"] == "note"


HIDDEN = {
    "cuda": {"init": 100, "count": None, "devices": []},
    "cuda_shown": {"loaded": True, "init": 0, "count": 1},
}
MIG = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
HIDING = ("", "-1", "NoDevFiles")


def recorded(start):
    return build_facts(next(case for case in ROOTS if case["name"].startswith(start)))


@pytest.mark.parametrize(
    ("start", "value", "changes"),
    [
        *(("C1 tensorflow-cpu", value, HIDDEN) for value in (*HIDING, MIG)),
        *(("C1 tensorflow-cpu", value, {"cuda_shown": None}) for value in HIDING),
        *(("A3: a driver of CUDA 11.4", value, HIDDEN) for value in (*HIDING, MIG)),
        *(("A5: cuInit 803", value, {"cuda_shown": {"init": 803}}) for value in HIDING),
        *(("A7: cuInit 804", value, {"cuda_shown": {"init": 804}}) for value in HIDING),
    ],
)
def test_what_hides_the_gpu_is_listed_as_what_comes_next(start, value, changes):
    facts = change(recorded(start), visible(value, value, value), changes)
    diagnosis = judge(facts)
    assert diagnosis.cause_id == start.partition(" ")[0].rstrip(":")
    hidden = {finding.id: finding for finding in diagnosis.findings}["D1"]
    assert hidden.status == "problem"
    assert repr(value) in hidden.evidence
    assert "unset it" in hidden.fix


def test_a_variable_is_no_fault_where_there_is_nothing_to_hide():
    none = {"driver": {"device_nodes": []}, "cuda_shown": {"loaded": False, "init": None}}
    facts = change(UNLISTED, NO_PCI_GPU, NO_DRIVER, CPU_BUILD, none, visible("-1"))
    diagnosis = judge(facts)
    assert diagnosis.cause_id == "A1"
    assert [one.status for one in diagnosis.findings if one.id == "D1"] in ([], ["note"])


def test_signs_of_jetson_and_of_windows_are_no_missing_gpu():
    for sign in ({"tegra": True}, {"dxg": True, "wsl_libcuda": True}):
        diagnosis = judge(change(UNLISTED, NO_PCI_GPU, NO_DRIVER, {"driver": sign}))
        assert diagnosis.cause_id != "A1"


def test_a_build_for_amd_is_no_build_for_the_cpu():
    rocm = {"build": {"is_cuda_build": False, "is_rocm_build": True}}
    assert judge(change(UNLISTED, rocm)).cause is None


def test_two_packages_are_no_cause_while_the_cuda_build_is_in_place():
    both = {"packages": {"tensorflow-cpu": "2.21.0"}}
    assert judge(change(UNLISTED, both)).cause is None


def test_the_three_readings_are_shown():
    diagnosis = judge(change(UNLISTED, visible("-1", None, "-1")))
    assert diagnosis.evidence == (
        "of CUDA_VISIBLE_DEVICES C reads '-1', Python reads nothing, R reads '-1'",
    )


def test_fixes_can_be_copied():
    fix = next(cause.fix for cause in CAUSES if cause.id == "C7")
    assert fill_fix(fix, parse_facts(HEALTHY)) == (
        '"/env/bin/python" -m pip install "tensorflow[and-cuda]==2.21.0"'
    )
    nightly = change(HEALTHY, {"tensorflow": {"version": "2.22.0-dev2025"}})
    assert fill_fix(fix, parse_facts(nightly)).endswith('"tensorflow[and-cuda]"')
    assert fill_fix(fix, parse_facts({})) == 'python -m pip install "tensorflow[and-cuda]"'


def test_fixes_for_jax_keep_its_version_and_its_cuda():
    fix = BY_ID["J8"].fix
    assert '"/env/bin/python" -m pip' in fill_fix(fix, parse_facts(JAX))
    assert '"jax[cuda12]==0.7.1"' in fill_fix(fix, parse_facts(JAX))
    newer = change(JAX, {"packages": {"jax-cuda13-plugin": "0.7.1"}})
    assert '"jax[cuda13]==0.7.1"' in fill_fix(fix, parse_facts(newer))
    assert '"jax[cuda12]"' in fill_fix(fix, parse_facts({}))


@pytest.mark.parametrize("cause", ["C3", "C16", "C17", "C21"])
def test_what_tensorflow_lacks_and_jax_has_is_said(cause):
    assert 'install_gpukeras(backend = "jax")' in BY_ID[cause].fix


@pytest.mark.parametrize(
    ("cause", "capability", "driver"),
    [
        ("A3", "9.0", "525.60.13"),
        ("A3", "12.0", "570"),
        ("A4", "9.0", "555"),
        ("A4", "10.0", "570"),
        ("A4", None, "555"),
    ],
)
def test_a_card_that_needs_a_newer_driver_is_told_that_one(cause, capability, driver):
    facts = change(HEALTHY, {"cuda": {"devices": [{"capability": capability}]}})
    fix = fill_fix(BY_ID[cause].fix, parse_facts(facts))
    assert fix.startswith(f"Update the NVIDIA driver to {driver} or later, and reboot.")
