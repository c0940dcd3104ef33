import pytest

from gpukeras.causes import CAUSES, fill_fix
from gpukeras.judgement import judge
from gpukeras.signs import WHEELS, hides_gpus

# A Linux computer with one GPU on which all is well, as read_facts() records it.
HEALTHY = {
    "session": {},
    "platform": {"system": "Linux", "release": "6.8.0-45-generic", "machine": "x86_64"},
    "hardware": {"nvidia_gpus": [{"slot": "01:00.0", "device": "0x2204", "driver": "nvidia"}]},
    "driver": {
        "version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024",
        "device_nodes": ["/dev/nvidia0"],
        "dxg": False,
        "wsl_libcuda": False,
        "tegra": False,
    },
    "container": {"marker": "", "nvidia_visible_devices": ""},
    "slurm": {"job_id": "", "gpus": ""},
    "environment": {"CUDA_VISIBLE_DEVICES": {"c": None, "python": None, "r": None}},
    "python": {"executable": "/env/bin/python", "version": "3.11.2", "prefix": "/env"},
    "packages": {"tensorflow": "2.21.0", "keras": "3.15.1"},
    "build": {
        "is_cuda_build": True,
        "is_rocm_build": False,
        "cuda_version": "12.5.1",
        "searches_cusolver": True,
    },
    "libraries": {"libcudart.so.12": "/env/nvidia/cuda_runtime/lib/libcudart.so.12"},
    "tensorflow": {
        "version": "2.21.0",
        "started": False,
        "physical_gpus": ["GPU:0"],
        "visible_gpus": ["GPU:0"],
    },
    "keras": {"backend": "tensorflow"},
    "proof": {"device": "GPU:0", "ok": True, "deviation": 1e-7, "tolerance": 2e-3, "error": ""},
}
NO_PCI_GPU = {"hardware": {"nvidia_gpus": []}}
NO_DRIVER = {"driver": {"version": "", "device_nodes": []}}
NO_BUS = {"hardware": {"nvidia_gpus": None}}
WSL = {"platform": {"release": "5.15.90.1-microsoft-standard-WSL2"}}
CPU_BUILD = {"build": {"is_cuda_build": False, "cuda_version": None}}
CUSOLVER = "/env/nvidia/cusolver/lib/libcusolver.so.11"


def visible(c, python=None, r=None):
    return {"environment": {"CUDA_VISIBLE_DEVICES": {"c": c, "python": python, "r": r}}}


def change(facts, *changes):
    """Facts with some parts replaced, one level deep."""
    changed = {name: dict(part or {}) for name, part in facts.items()}
    for parts in changes:
        for name, part in parts.items():
            changed[name] = {**changed[name], **part}
    return changed


UNLISTED = change(HEALTHY, {"tensorflow": {"physical_gpus": [], "visible_gpus": []}}, {"proof": {}})
UNLISTED["proof"] = None

ROOTS = [
    ("C4", [{"platform": {"system": "Darwin", "machine": "arm64"}}, NO_BUS]),
    ("C2", [{"platform": {"system": "Windows", "release": "11"}}, NO_BUS, CPU_BUILD]),
    ("A1", [NO_PCI_GPU, NO_DRIVER]),
    ("A1", [NO_PCI_GPU, NO_DRIVER, CPU_BUILD, visible("-1", "-1", "-1")]),
    ("A1", [NO_PCI_GPU, NO_DRIVER, {"container": {"marker": "/.dockerenv"}}]),
    ("B4", [WSL, NO_PCI_GPU, NO_DRIVER]),
    ("B4", [WSL, NO_PCI_GPU, NO_DRIVER, {"driver": {"dxg": True}}]),
    ("A2", [NO_DRIVER]),
    ("A2", [NO_DRIVER, {"hardware": {"nvidia_gpus": [{"driver": "nouveau"}]}}, CPU_BUILD]),
    ("B6", [{"slurm": {"job_id": "7"}}, visible("NoDevFiles")]),
    ("B6", [{"slurm": {"job_id": "7"}}, NO_PCI_GPU, NO_DRIVER]),
    ("B1", [{"container": {"marker": "/.dockerenv"}}, {"driver": {"device_nodes": []}}]),
    ("B1", [{"container": {"marker": "/.dockerenv"}}, NO_BUS, NO_DRIVER]),
    ("C0", [{"tensorflow": {"error": "No module named 'tensorflow'", "physical_gpus": None}}]),
    ("C6", [CPU_BUILD, {"packages": {"tensorflow-cpu": "2.21.0"}}]),
    ("C3", [CPU_BUILD, {"platform": {"machine": "aarch64"}}]),
    ("C1", [CPU_BUILD]),
    ("C1", [CPU_BUILD, visible("-1")]),
    ("C7", [{"libraries": {"libcudart.so.12": ""}}]),
    (
        "C9",
        [{"libraries": {"libcusolver.so.11": CUSOLVER}}, {"build": {"searches_cusolver": False}}],
    ),
    ("D2", [visible("-1", None, "-1"), {"session": {"tensorflow_r_loaded": True}}]),
    ("D1", [visible("-1", None, "-1")]),
    ("D1", [visible("")]),
    ("D1", [visible("1")]),  # there is only GPU 0
    ("D1", [visible(None, "-1")]),
]


@pytest.mark.parametrize(("root", "changes"), ROOTS)
def test_recorded_facts_have_one_root(root, changes):
    diagnosis = judge(change(UNLISTED, *changes))
    assert (diagnosis.verdict, diagnosis.cause_id) == ("NOT USED", root)
    assert diagnosis.cause
    assert diagnosis.fix
    assert diagnosis.evidence[0]
    assert [finding.id for finding in diagnosis.findings].count(root) == 1
    assert "{" not in diagnosis.fix + diagnosis.cause


@pytest.mark.parametrize(
    ("root", "changes"),
    [
        ("D3", [{"tensorflow": {"visible_gpus": []}}]),
        ("D6", [{"keras": {"backend": "jax"}}]),
        ("P1", [{"proof": {"ok": False, "error": "killed by SIGABRT: LLVM ERROR"}}]),
    ],
)
def test_where_a_gpu_is_listed_other_causes_are_roots(root, changes):
    diagnosis = judge(change(HEALTHY, *changes))
    assert (diagnosis.verdict, diagnosis.cause_id) == ("NOT USED", root)


def test_every_cause_is_tested_and_has_its_own_id():
    ids = [cause.id for cause in CAUSES]
    assert len(set(ids)) == len(ids)
    assert set(ids) == {root for root, _ in ROOTS} | {"D3", "D6", "P1"}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_causes_are_written_for_people(cause):
    assert cause.title.endswith((".", "{evidence}"))
    assert cause.fix
    assert cause.source
    assert cause.detect.__doc__.startswith(f"{cause.id}: ")


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_no_cause_is_detected_where_all_is_well_or_nothing_is_known(cause):
    assert cause.detect(HEALTHY) is None
    assert cause.detect({}) is None


@pytest.mark.parametrize("name", [name for name in HEALTHY if name != "tensorflow"])
def test_a_missing_part_is_never_taken_as_a_no(name):
    known = {key: part for key, part in UNLISTED.items() if key != name}
    diagnosis = judge(known)
    assert (diagnosis.verdict, diagnosis.cause) == ("NOT USED", None)


def test_other_causes_are_notes_beside_the_root():
    diagnosis = judge(change(UNLISTED, NO_PCI_GPU, NO_DRIVER, CPU_BUILD))
    statuses = {finding.id: finding.status for finding in diagnosis.findings}
    assert statuses["A1"] == "problem"
    assert statuses["C1"] == "note"


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


@pytest.mark.parametrize(
    ("value", "gpus", "hidden"),
    [
        (None, 1, False),
        ("", 1, True),
        ("-1", 1, True),
        ("-1,0", 1, True),  # CUDA stops at the first that is none
        ("NoDevFiles", 1, True),
        ("0", 1, False),
        ("0,-1", 1, False),
        ("1", 1, True),
        ("1", 2, False),
        ("7", None, False),  # how many there are is not determined
        ("GPU-8932f937", 1, False),
        ("MIG-5c5d", 1, False),
        (3, 1, False),
    ],
)
def test_values_that_hide_all_gpus(value, gpus, hidden):
    assert hides_gpus(value, gpus) is hidden


def test_fixes_can_be_copied():
    fix = next(cause.fix for cause in CAUSES if cause.id == "C7")
    assert fill_fix(fix, HEALTHY) == (
        '"/env/bin/python" -m pip install "tensorflow[and-cuda]==2.21.0"'
    )
    nightly = change(HEALTHY, {"tensorflow": {"version": "2.22.0-dev2025"}})
    assert fill_fix(fix, nightly).endswith('"tensorflow[and-cuda]"')
    assert fill_fix(fix, {}) == 'python -m pip install "tensorflow[and-cuda]"'


def test_wheels_are_the_names_that_own_the_module():
    assert "tensorflow-intel" not in WHEELS  # a part of `tensorflow` on Windows
