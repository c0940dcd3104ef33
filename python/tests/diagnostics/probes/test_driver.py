"""The real probe in a real child process, over stand-ins for the driver's libraries."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stub_driver import build_stubs, stub_environment

from gpukeras.diagnostics.probes import codes, driver
from gpukeras.system import host

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the NVIDIA driver is looked for on Linux only"
)
needs_no_driver = pytest.mark.skipif(
    "libcuda.so.1" in host.read_library_cache(), reason="a real NVIDIA driver is installed"
)
BOTH = ("cuda", "nvml")
CORE = Path(driver.__file__).parents[3]


def start_probe(environment, *arguments, **options):
    command = [sys.executable, "-m", "gpukeras.diagnostics.probes.driver", *arguments]
    given = {"env": environment, "capture_output": True, "text": True, "timeout": 600}
    return subprocess.run(command, **given, **options)


def run_probe(environment, *arguments):
    child = start_probe(environment, *arguments)
    assert (child.returncode, child.stderr) == (0, "")
    return json.loads(child.stdout.splitlines()[-1])


def probe(libraries=BOTH, **settings):
    """What the probe says of stand-ins; it must always say that they are that."""
    facts = run_probe(stub_environment(libraries, **settings))
    for section in (facts["cuda"], facts["nvml"]):
        assert section.get("simulated") is (True if section["loaded"] else None)
    return facts


UUIDS = ["GPU-00102030-4050-6070-8090-a0b0c0d0e0f0", "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1"]


@pytest.fixture(scope="module")
def healthy():
    names = {"STUB_COUNT": 2, "STUB_NAME": "NVIDIA H100,Tesla T4", "STUB_CAPABILITY": "9.0,7.5"}
    sizes = {"STUB_TOTAL_MIB": "81920,16384", "STUB_MULTIPROCESSORS": "132,40"}
    return probe(**names, **sizes, STUB_FREE_MIB="81000,16000", STUB_DRIVER_VERSION=12080)


def test_a_healthy_driver_is_read_whole(healthy):
    cuda = dict(healthy["cuda"])
    assert cuda.pop("devices") == [
        {
            "name": name,
            "capability": capability,
            "compute_mode": 0,
            "multiprocessors": multiprocessors,
            "total_bytes": gigabytes * 2.0**30,
            "uuid": uuid,
        }
        for name, capability, multiprocessors, gigabytes, uuid in (
            ("NVIDIA H100", "9.0", 132, 80, UUIDS[0]),
            ("Tesla T4", "7.5", 40, 16, UUIDS[1]),
        )
    ]
    assert cuda == {
        "loaded": True,
        "error": "",
        "path": str(build_stubs() / "cuda/libcuda.so.1"),
        "simulated": True,
        "init": 0,
        "driver_version": 12080,
        "count_status": 0,
        "count": 2,
    }
    assert healthy["cudnn"] is None


def test_a_healthy_nvml_is_read_whole(healthy):
    nvml = dict(healthy["nvml"])
    devices = nvml.pop("devices")
    assert nvml == {
        "loaded": True,
        "error": "",
        "path": str(build_stubs() / "nvml/libnvidia-ml.so.1"),
        "simulated": True,
        "init": 0,
        "driver": "550.54.15",
        "cuda_version": 12080,
        "count_status": 0,
        "count": 2,
    }
    assert devices[1] == {
        "status": 0,
        "name": "Tesla T4",
        "uuid": UUIDS[1],
        "total_bytes": 16 * 2.0**30,
        "free_bytes": 16000 * 2.0**20,
        "mig": False,
        "mig_devices": 0,
        "compute_mode": 0,
        "link_width": 16,
        "link_width_max": 16,
        "link_generation": 3,
        "link_generation_max": 4,
        "throttle": 0,
        "utilization": 0,
        "processes": [],
    }


@pytest.mark.varies
@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        (100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "unsupported display driver / cuda driver"),
        (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted"),
        (805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect"),
        (999, "CUDA_ERROR_UNKNOWN", "unknown error"),
        (12345, None, ""),  # a code that nobody knows yet
    ],
)
def test_a_cuda_that_does_not_start_gives_its_code_and_words(code, name, text):
    cuda = probe(STUB_CUINIT=code)["cuda"]
    assert codes.CU_RESULTS.get(cuda["init"]) == name
    assert text in cuda["error"]
    assert bool(cuda["error"]) is bool(text)
    assert (cuda["count_status"], cuda["count"], cuda["devices"]) == (None, None, [])
    assert cuda["driver_version"] == 12040  # known all the same


@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        (9, "NVML_ERROR_DRIVER_NOT_LOADED", "Driver Not Loaded"),
        (18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"),
        (999, "NVML_ERROR_UNKNOWN", "Unknown Error"),
    ],
)
def test_an_nvml_that_does_not_start_gives_its_code_and_words(code, name, text):
    facts = probe(STUB_NVML_INIT=code)
    nvml = facts["nvml"]
    assert codes.NVML_RETURNS[nvml["init"]] == name
    assert nvml["error"] == text
    assert (nvml["driver"], nvml["count"], nvml["devices"]) == (None, None, [])
    assert facts["cuda"]["count"] == 1  # CUDA alone works


def test_a_driver_that_ends_the_process_ends_only_the_probe(tmp_path):
    child = start_probe(stub_environment(STUB_CUINIT=-1), cwd=tmp_path)  # a core file goes there
    assert child.returncode == -signal.SIGABRT
    facts = json.loads(child.stdout.splitlines()[-1])
    assert facts["cuda"] is None
    assert facts["nvml"]["count"] == 1  # what was known before is not lost


def test_a_driver_without_gpus_is_told_from_one_whose_count_fails():
    none = probe(STUB_COUNT=0)
    assert (none["cuda"]["init"], none["cuda"]["count_status"], none["cuda"]["count"]) == (0, 0, 0)
    assert (none["nvml"]["init"], none["nvml"]["count"]) == (0, 0)
    failing = probe(STUB_COUNT_STATUS=999)["cuda"]
    assert (failing["init"], failing["count_status"], failing["count"]) == (0, 999, None)


@needs_no_driver
@pytest.mark.parametrize(
    ("libraries", "missing"),
    [(("cuda",), {"nvml"}), (("nvml",), {"cuda"}), ((), {"cuda", "nvml"})],
)
def test_a_missing_library_is_told_with_the_loaders_words(libraries, missing):
    facts = probe(libraries)
    names = {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}
    assert {section for section in names if not facts[section]["loaded"]} == missing
    for section in missing:
        text = f"{names[section]}: cannot open shared object file"
        assert facts[section] == {"loaded": False, "error": facts[section]["error"]}
        assert facts[section]["error"].startswith(text)


@needs_no_driver
def test_without_a_driver_the_probe_says_so_in_this_environment_too():
    inherited = dict(os.environ, PYTHONPATH=str(CORE))
    facts = run_probe(inherited)
    assert not facts["cuda"]["loaded"]
    assert "libcuda.so.1" in facts["cuda"]["error"]
    assert not facts["nvml"]["loaded"]


def test_a_library_that_is_none_is_told_not_raised(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("GROUP ( libcuda.so )\n" * 9)
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"\x7fELF")
    environment = {**stub_environment(()), "LD_LIBRARY_PATH": str(tmp_path)}
    facts = run_probe(environment)
    assert not facts["cuda"]["loaded"]
    assert "invalid ELF header" in facts["cuda"]["error"]
    assert "file too short" in facts["nvml"]["error"]


def test_an_old_driver_lacks_functions_and_leaves_those_facts_open():
    facts = probe(("cuda-old", "nvml-old"), STUB_PID=os.getpid(), STUB_THROTTLE=4)
    assert facts["cuda"]["devices"][0]["uuid"] is None
    assert facts["cuda"]["devices"][0]["name"] == "Simulated GPU"
    device = facts["nvml"]["devices"][0]
    assert (device["status"], device["mig"], device["mig_devices"]) == (0, None, None)
    assert device["throttle"] == 4  # by the older name
    assert device["processes"][0]["pid"] == os.getpid()  # by the older name


LOST = {"status": 15}  # and nothing else is known


@pytest.mark.varies
@pytest.mark.parametrize(
    ("settings", "section", "expected"),
    [
        ({"STUB_DRIVER_VERSION": 11040}, "cuda", {"driver_version": 11040}),
        ({"STUB_DRIVER_VERSION": 11040}, "nvml", {"cuda_version": 11040}),
        ({"STUB_NVML_DRIVER": "470.82.01"}, "nvml", {"driver": "470.82.01"}),
        ({"STUB_CAPABILITY": "12.0"}, "cuda device", {"capability": "12.0"}),
        ({"STUB_COMPUTE_MODE": 3}, "cuda device", {"compute_mode": 3}),
        ({"STUB_COMPUTE_MODE": 3}, "nvml device", {"compute_mode": 3}),
        ({"STUB_FREE_MIB": 300}, "nvml device", {"free_bytes": 300 * 2.0**20}),
        ({"STUB_LINK_WIDTH": 4}, "nvml device", {"link_width": 4}),
        ({"STUB_THROTTLE": "0x48"}, "nvml device", {"throttle": 0x48}),
        ({"STUB_UTILIZATION": 97}, "nvml device", {"utilization": 97}),
        # Merely not supported:
        ({"STUB_UTILIZATION": -1}, "nvml device", {"utilization": None, "status": 0}),
        ({"STUB_MIG": 0}, "nvml device", {"mig": False}),
        ({"STUB_MIG": 1}, "nvml device", {"mig": True, "mig_devices": 0}),
        ({"STUB_MIG": 1, "STUB_MIG_DEVICES": 3}, "nvml device", {"mig_devices": 3}),
        ({"STUB_NVML_HANDLE": 15}, "nvml device", LOST),
        ({"STUB_NVML_DEVICE": 15}, "nvml device", LOST),
        ({"STUB_NVML_DEVICE": 4}, "nvml device", {"status": 0}),  # tells of the query only
    ],
)
def test_a_state_of_the_driver_arrives_in_its_fact(settings, section, expected):
    name, _, device = section.partition(" ")
    found = probe(**settings)[name]
    found = found["devices"][0] if device else found
    assert {fact: found[fact] for fact in expected} == expected
    if expected == LOST:
        assert [fact for fact, value in found.items() if value is not None] == ["status"]


def test_a_card_that_is_taken_names_who_holds_it_without_arguments():
    secret = [sys.executable, "-c", "input()", "--password=secret"]
    holder = subprocess.Popen(secret, stdin=subprocess.PIPE)
    try:
        facts = probe(STUB_FREE_MIB=200, STUB_PID=holder.pid)
        gone = probe(STUB_PID=2**22 + 1)  # beyond Linux's largest process number
    finally:
        holder.communicate(b"\n", timeout=600)
    device = facts["nvml"]["devices"][0]
    assert device["free_bytes"] == 200 * 2.0**20
    program = os.path.basename(sys.executable)
    assert device["processes"] == [{"pid": holder.pid, "bytes": 2.0**30, "program": program}]
    assert "secret" not in json.dumps(facts)
    assert gone["nvml"]["devices"][0]["processes"][0]["program"] == ""


BINDING = """
import json, pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(1)
memory, (process,) = n.nvmlDeviceGetMemoryInfo(gpu), n.nvmlDeviceGetComputeRunningProcesses(gpu)
print(json.dumps({
    "name": n.nvmlDeviceGetName(gpu), "uuid": n.nvmlDeviceGetUUID(gpu),
    "total_bytes": memory.total, "free_bytes": memory.free,
    "mig": bool(n.nvmlDeviceGetMigMode(gpu)[0]), "compute_mode": n.nvmlDeviceGetComputeMode(gpu),
    "link_width": n.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "throttle": n.nvmlDeviceGetCurrentClocksEventReasons(gpu),
    "utilization": n.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "pid": process.pid, "bytes": process.usedGpuMemory,
}))
"""


def test_nvidias_own_binding_of_nvml_reads_the_same():
    pytest.importorskip("pynvml")
    settings = {"STUB_COUNT": 2, "STUB_PID": os.getpid(), "STUB_MIG": 1, "STUB_COMPUTE_MODE": 3}
    environment = stub_environment(STUB_THROTTLE=0x104, STUB_UTILIZATION=7, **settings)
    command = [sys.executable, "-c", BINDING]
    child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=600)
    expected = json.loads(child.stdout)
    found = run_probe(environment)["nvml"]["devices"][1]
    found |= {key: found["processes"][0][key] for key in ("pid", "bytes")}
    assert {key: found[key] for key in expected} == expected


def count_of(**settings):
    facts = probe(STUB_COUNT=3, STUB_NAME="A,B,C", **settings)
    assert facts["nvml"]["count"] == 3  # NVML shows all, whatever the variable says
    names = [device["name"] for device in facts["cuda"]["devices"]]
    return facts["cuda"]["init"], facts["cuda"]["count"], "".join(names)


@pytest.mark.varies
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ({}, (0, 3, "ABC")),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, (0, 2, "CA")),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, (0, 1, "B")),
        ({"CUDA_VISIBLE_DEVICES": ""}, (100, None, "")),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, (100, None, "")),
        ({"CUDA_VISIBLE_DEVICES": "7"}, (100, None, "")),
    ],
)
def test_hidden_gpus_are_seen_by_leaving_the_variable_out(visible, expected):
    assert count_of(**visible) == expected


@pytest.fixture
def cudnn(tmp_path):
    build_stubs()  # skips without a compiler
    source, target = tmp_path / "cudnn.c", tmp_path / "libcudnn.so.9"
    source.write_text("#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 91002; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, source], check=True, timeout=120)
    return target


def test_cudnn_is_asked_for_its_version(cudnn, tmp_path):
    found = run_probe(stub_environment(), str(cudnn))["cudnn"]
    assert (found["version"], found["path"], found["error"]) == (91002, str(cudnn), "")
    missing = run_probe(stub_environment(), str(tmp_path / "libcudnn.so.8"))["cudnn"]
    assert not missing["loaded"]
    other = run_probe(stub_environment(), str(build_stubs() / "cuda/libcuda.so.1"))["cudnn"]
    assert (other["loaded"], other["version"]) == (True, None)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/usr/lib/R/bin/exec/R\0--no-echo\0-e\0secret()\0", "R"),
        ("ray::train secret", "ray::train"),
        ("worker: job 7", "worker"),
        ("python\0", "python"),
        ("", ""),
        ("\0\0", ""),
    ],
)
def test_a_program_is_named_without_its_arguments(command, program):
    assert driver.parse_program(command) == program


def test_an_error_inside_a_section_is_reported_not_raised():
    def fail(library):
        raise ValueError("odd")

    facts = driver.read_library("libc.so.6", fail)
    assert (facts["loaded"], facts["error"], facts["simulated"]) == (True, "ValueError: odd", False)
    assert "libc.so" in facts["path"]
    assert driver.find_mapped("libc.so.6", "/nonexistent") is None


IMPORTED = f"""
import sys; sys.path[:0] = [{str(CORE)!r}]
import gpukeras.diagnostics.probes.driver
other = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)
print(sorted(other - {{"__main__", "gpukeras"}}))
"""


def test_the_probe_needs_the_standard_library_only():
    command = [sys.executable, "-I", "-S", "-c", IMPORTED]
    child = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (child.stdout, child.stderr) == ("[]\n", "")
