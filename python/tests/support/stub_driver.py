"""Stand-ins for the NVIDIA driver's libraries, built from the C files in stubs/.

They let the real probe, or the real TensorFlow with CUDA, meet a driver in any state up to the
listing of GPUs. Nothing can be computed on them, and every report over them says "simulated".
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from children import PATHS

SOURCES = Path(__file__).parent / "stubs"
LIBRARIES = {"cuda": "libcuda", "nvml": "libnvidia-ml"}
FOREIGN = ("STUB_", "CUDA_", "NVIDIA_", "LD_")  # what a developer's shell may bring along


@functools.cache
def build_stubs():
    """A folder with a folder for each library, so that one can be missing; built once."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the stand-ins for the driver are built for Linux")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the stand-ins for the driver with")
    folder = Path(tempfile.mkdtemp(prefix="gpukeras-stubs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, library in LIBRARIES.items():
        for suffix, options in (("", ()), ("-old", ("-DOLD_DRIVER",))):
            target = folder / f"{name}{suffix}" / f"{library}.so.1"
            target.parent.mkdir()
            flags = ["-std=c11", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", *options]
            command = [compiler, *flags, "-o", target, SOURCES / f"lib{name}.c"]
            subprocess.run(command, check=True, timeout=120)
    return folder


def stub_environment(libraries=("cuda", "nvml"), **settings):
    """All of a child's environment: the libraries to be found, and how they behave.

    Args:
        libraries: Of "cuda", "nvml", and "cuda-old" and "nvml-old", which lack newer functions.
        **settings: What the C files name (STUB_CUINIT=803), and other variables.
    """
    folder = build_stubs()
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith(FOREIGN)}
    paths = os.pathsep.join(str(folder / name) for name in libraries)
    given = {name: str(value) for name, value in settings.items()}
    return {**inherited, "PYTHONPATH": PATHS, "LD_LIBRARY_PATH": paths, **given}
