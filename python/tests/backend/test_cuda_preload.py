import gc
import os
import shutil
import subprocess
import sys

import pytest
from children import run_python, run_script
from stub_driver import stub_environment

from gpukeras.backend import cuda_preload

NEEDED = {
    "wanted": True,
    "imported": False,
    "is_cuda_build": True,
    "libraries": ["/x/nvidia/cudnn/lib/libcudnn.so.9", "/x/nvidia/cublas/lib/libcublas.so.12"],
    "driver": True,
}


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({}, "planned", "finds its own"),
        ({"wanted": False}, "not needed", "GPUKERAS_PRELOAD"),
        ({"is_cuda_build": False}, "not needed", "without CUDA"),
        ({"is_cuda_build": None}, "not needed", "without CUDA"),
        ({"libraries": []}, "not needed", "not installed"),
        ({"driver": False}, "not needed", "NVIDIA driver"),
        ({"imported": True}, "too late", "before gpukeras"),
        ({"imported": True, "driver": False}, "not needed", "NVIDIA driver"),
    ],
)
def test_when_libraries_are_loaded_first(changes, status, reason):
    plan = cuda_preload.plan_preload({**NEEDED, **changes})
    assert plan.status == status
    assert reason in plan.reason
    assert bool(plan.libraries) == (status == "planned")


def test_nothing_known_is_nothing_done():
    assert cuda_preload.plan_preload({}).status == "not needed"


def test_a_library_comes_after_those_it_needs_and_unknown_ones_are_left_out():
    names = ["libcusolver.so.11", "libcudnn_ops.so.9", "libcublas.so.12", "libcusolverMg.so.11"]
    names += ["libcublasLt.so.12", "libnvJitLink.so.12", "libcusparse.so.12"]
    found = [
        os.path.basename(path) for path in cuda_preload.sort_libraries(f"/x/{n}" for n in names)
    ]
    assert found == [
        "libnvJitLink.so.12",
        "libcublasLt.so.12",
        "libcublas.so.12",
        "libcusparse.so.12",
        "libcusolver.so.11",
    ]


def test_the_wheels_libraries_are_found_in_their_folders(tmp_path):
    for name in ("cublas/lib/libcublas.so.12", "cublas/lib/__init__.py", "cublas/include/cublas.h"):
        path = tmp_path / "nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert cuda_preload.list_wheel_libraries(tmp_path) == [
        str(tmp_path / "nvidia/cublas/lib/libcublas.so.12")
    ]


@pytest.mark.parametrize("sign", ["proc/driver/nvidia", "dev/nvidiactl", "dev/dxg"])
def test_signs_of_a_driver(tmp_path, sign):
    (tmp_path / sign).mkdir(parents=True)
    assert cuda_preload.has_driver(tmp_path)


def test_a_driver_that_only_the_loader_knows_is_one():
    code = "from gpukeras.backend.cuda_preload import has_driver; print(has_driver('/none'))"
    environment = stub_environment()
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert child.stdout == "True\n"


def build_library(folder, name, code="", needs=()):
    """A real shared library, in a folder of its own as in NVIDIA's wheels."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    source = folder / f"{name}.c"
    source.write_text(code or "int answer(void) { return 42; }\n")
    target = folder / name.split(".")[0] / name
    target.parent.mkdir()
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,--no-as-needed"]
    subprocess.run([compiler, *flags, "-o", target, source, *needs], check=True)
    return str(target)


def test_what_was_loaded_first_is_found_by_name_afterwards(tmp_path):
    lost = build_library(tmp_path, "libcusolver.so.11")
    script = f"""
    import ctypes
    from gpukeras.backend.cuda_preload import Preload, apply_preload
    def finds():
        try:
            return ctypes.CDLL("libcusolver.so.11").answer()
        except OSError:
            return None
    before = finds()
    plan = apply_preload(Preload("planned", ({lost!r},), ""))
    answer = {{"before": before, "after": finds(), "status": plan.status}}
    """
    assert run_script(script) == {"before": None, "after": 42, "status": "done"}


def test_a_library_that_is_broken_is_told_and_harms_nothing(tmp_path):
    broken = tmp_path / "libcublas.so.12"
    broken.write_bytes(b"no library")
    plan = cuda_preload.apply_preload(cuda_preload.Preload("planned", (str(broken),), ""))
    assert plan.status == "failed"
    assert "libcublas.so.12" in plan.reason


def test_what_was_not_planned_is_not_done():
    plan = cuda_preload.Preload("too late", (), "so")
    assert cuda_preload.apply_preload(plan) is plan


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_pauses_and_is_then_as_it_was(collecting):
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        with cuda_preload.paused_collector():
            assert not gc.isenabled()
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if before else gc.disable)()


MUTED = """
import os, signal, sys
from gpukeras.backend.cuda_preload import muted_stderr
with muted_stderr():
    os.write(2, b"a note of the import\\n")
    {died}
os.write(2, b"heard again")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sed")
@pytest.mark.parametrize(
    ("died", "heard"),
    [
        ("pass", "heard again"),
        ("os.kill(os.getpid(), signal.SIGKILL)", ""),
        (
            r'os.write(2, b"\n *** caught segfault ***\ncause\n"); os.abort()',
            " *** caught segfault ***\ncause\n",
        ),
        (r'os.write(2, b"F0000 no AVX\n"); os.abort()', "F0000 no AVX\n"),
    ],
)
def test_an_import_is_muted_but_for_its_last_words(died, heard):
    assert run_python("-c", MUTED.format(died=died)).stderr == heard
