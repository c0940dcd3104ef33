"""Environments as files: what is read of them, and that nothing in them is run."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from children import run_script

from gpukeras.system import host, packages

CUDA_BUILD = """\
\"\"\"Auto-generated module providing information about the build.\"\"\"
import collections

build_info = collections.OrderedDict([('cpu_compiler', 'clang'), \
('cuda_compute_capabilities', ['sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90']), \
('cuda_version', '12.5.1'), ('cudnn_version', '9'), ('is_cuda_build', True), \
('is_rocm_build', False), ('is_tensorrt_build', False)])
"""
CPU_BUILD = """\
import collections
build_info = collections.OrderedDict([('is_cuda_build', False), ('is_rocm_build', False)])
"""
ASKED = [
    "numpy>=1.26.0",
    'nvidia-cublas-cu12<13.0,>=12.5.3.2; extra == "and-cuda"',
    'nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == "and-cuda"',
    'nvidia_nvjitlink_cu12<13.0,>=12.5.82; extra == "and-cuda"',
    'tensorflow-io>=0.23; (sys_platform != "win32") and extra == "gcs-filesystem"',
    'tensorflow-intel; platform_system == "Windows"',
]


def make_site(prefix, build_info=CUDA_BUILD, wheels=("tensorflow-2.21.0",), python="python3.11"):
    """An environment's folder of packages with a TensorFlow in it."""
    site = prefix / "lib" / python / "site-packages"
    file = site / packages.BUILD_INFO
    file.parent.mkdir(parents=True)
    file.write_text(build_info)
    (site / "tensorflow/__init__.py").write_text("raise SystemExit('imported')\n")
    for wheel in wheels:
        (site / f"{wheel}.dist-info").mkdir()
    (prefix / "bin").mkdir(exist_ok=True)
    (prefix / "bin/python").touch()
    return site


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An environment with a CUDA build, first on the path."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    site = make_site(tmp_path / "env")
    monkeypatch.syspath_prepend(site)
    return site


def make_metadata(site, name, asked=()):
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        *(f"Requires-Dist: {line}" for line in asked),
    ]
    folder = next(site.glob(f"{name.replace('-', '_')}-*.dist-info"))
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


# Packages ----------------------------------------------------------------------------------------


def test_packages_are_known_by_their_folders(site):
    for name in ("nvidia_cudnn_cu12-9.28.0.42", "torch-2.5.1+cu121", "six-1.17.0"):
        (site / f"{name}.dist-info").mkdir()
    (site / "jax-0.4.30-py3.11.egg-info").mkdir()
    (site / "~ensorflow-2.20.0.dist-info").mkdir()  # what pip leaves of an interrupted removal
    found = packages.read_packages()
    assert found["tensorflow"] == "2.21.0"
    assert found["nvidia-cudnn-cu12"] == "9.28.0.42"
    assert found["torch"] == "2.5.1+cu121"
    assert found["jax"] == "0.4.30"
    assert "six" not in found
    assert list(found) == sorted(found)


def test_the_package_first_on_the_path_counts(site, tmp_path, monkeypatch):
    other = tmp_path / "other"
    (other / "tensorflow-2.19.1.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(site), str(other), str(tmp_path / "none")])
    assert packages.read_packages() == {"tensorflow": "2.21.0"}


def test_packages_of_this_python_are_those_that_its_metadata_names():
    script = """
    import importlib.metadata as metadata
    from gpukeras.system import packages as inventory
    found = inventory.read_packages()
    answer = [found, {name: metadata.version(name) for name in found}]
    """
    found, known = run_script(script)
    assert found == known
    assert any(name.startswith("tensorflow") for name in found)


def test_requirements_are_the_ones_that_are_missing_or_of_another_version():
    installed = {"nvidia-cublas-cu12": "12.9.3.13", "nvidia-cudnn-cu12": "9.1.0.70"}
    assert packages.parse_requirements(ASKED, installed) == [
        {"name": "nvidia-cudnn-cu12", "wanted": ">=9.3.0.75,<10.0", "installed": "9.1.0.70"},
        {"name": "nvidia-nvjitlink-cu12", "wanted": ">=12.5.82,<13.0", "installed": ""},
    ]
    right = {**installed, "nvidia-cudnn-cu12": "9.28.0.42", "nvidia-nvjitlink-cu12": "12.9.86"}
    assert packages.parse_requirements(ASKED, right) == []


def test_a_version_that_is_none_is_another_version():
    found = packages.parse_requirements(ASKED[1:2], {"nvidia-cublas-cu12": "local-build"})
    assert [item["installed"] for item in found] == ["local-build"]


def test_requirements_of_a_cuda_build_are_read_from_its_metadata(site):
    make_metadata(site, "tensorflow", ASKED)
    (site / "nvidia_cublas_cu12-12.9.3.13.dist-info").mkdir()
    found = packages.read_requirements()
    assert [item["name"] for item in found] == ["nvidia-cudnn-cu12", "nvidia-nvjitlink-cu12"]


def test_requirements_of_a_build_for_the_cpu_are_not_determined(site):
    (site / packages.BUILD_INFO).write_text(CPU_BUILD)
    make_metadata(site, "tensorflow", ASKED)
    assert packages.read_requirements() is None


# The build ---------------------------------------------------------------------------------------


def test_a_build_is_read_and_not_run(site):
    build = packages.read_build()
    assert build["is_cuda_build"] is True
    assert build["cuda_compute_capabilities"][-1] == "compute_90"
    assert build["version"] == "2.21.0"
    assert build["searches_cusolver"] is None  # there is no library
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (CPU_BUILD, {"is_cuda_build": False, "is_rocm_build": False}),
        ("build_info = {'is_cuda_build': True}", {"is_cuda_build": True}),
        ("build_info = collections.OrderedDict(find())", None),
        ("build_info = collections.OrderedDict()", None),
        ("build_info = 1", None),
        ("build_info = [", None),
        ("raise SystemExit", None),
        ("", None),
        ("\0", None),
    ],
)
def test_odd_builds_are_not_determined(tmp_path, text, build):
    site = make_site(tmp_path, text)
    assert packages.read_build_info(site) == build


def test_without_tensorflow_nothing_is_determined(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/no/such/folder"])
    assert packages.find_tensorflow() is None
    assert packages.read_build() is None
    assert packages.read_requirements() is None
    assert packages.read_compiler() is None
    assert packages.read_libraries({"cuda_version": "12.5.1"}) is None
    assert packages.find_cudnn({"cudnn_version": "9"}) == ""


def test_this_build_is_the_one_that_tensorflow_would_tell():
    found = run_script(
        "from gpukeras.system import packages as inventory; import sys\n"
        "answer = [inventory.read_build(), 'tensorflow' in sys.modules]"
    )
    build, imported = found
    assert isinstance(build["is_cuda_build"], bool)
    assert build["version"].startswith("2.")
    assert imported is False


def make_library(path, tag=29, runpath=b"$ORIGIN/../nvidia/cusolver/lib"):
    """A 64-bit ELF file with nothing but a dynamic section, mapped 0x1000 above its offsets."""
    strings = b"\0" + runpath + b"\0"
    dynamic = [(tag, 1), (5, 0x1000 + 512), (10, len(strings)), (0, 0)]
    table = b"".join(struct.pack("<QQ", *entry) for entry in dynamic)
    header = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<QQIHHH", 64, 0, 0, 64, 56, 2)
    load = struct.pack("<II6Q", 1, 0, 0, 0x1000, 0x1000, 1024, 1024, 8)
    part = struct.pack("<II6Q", 2, 0, 256, 0x1100, 0x1100, len(table), len(table), 8)
    content = (header.ljust(64, b"\0") + load + part).ljust(256, b"\0") + table
    path.write_bytes(content.ljust(512, b"\0") + strings.ljust(512, b"\0"))
    return path


def test_the_search_path_of_a_library_is_read(tmp_path, site):
    assert packages.read_search_path(make_library(tmp_path / "a.so")).endswith("cusolver/lib")
    assert packages.read_search_path(make_library(tmp_path / "b.so", 15)).endswith("cusolver/lib")
    assert packages.read_search_path(make_library(tmp_path / "c.so", 14)) == ""  # its own name
    for runpath, searched in ((b"$ORIGIN/../nvidia/cusolver/lib:$ORIGIN", True), (b"/x", False)):
        make_library(site / "tensorflow/libtensorflow_framework.so.2", runpath=runpath)
        assert packages.read_build()["searches_cusolver"] is searched


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not installed")
def test_search_paths_are_those_that_readelf_shows():
    folder = packages.find_tensorflow()
    libraries = sorted(folder.glob("python/*.so"))[:5] + sorted(folder.glob("*.so.2"))
    for library in libraries:
        shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
        lines = [line for line in shown.splitlines() if "PATH)" in line]
        expected = lines[0].partition("[")[2].rstrip("]") if lines else ""
        assert packages.read_search_path(library) == expected
    assert libraries or sys.platform != "linux"


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x01"]
)
def test_what_is_no_library_has_no_search_path(tmp_path, content):
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    assert packages.read_search_path(path) is None
    assert packages.read_search_path(tmp_path / "none.so") is None


@pytest.mark.parametrize("place", range(6))
def test_libraries_of_other_computers_have_no_search_path(tmp_path, place):
    content = bytearray(make_library(tmp_path / "lib.so").read_bytes())
    content[place] ^= 3  # such as 32 bits, or the other order of bytes
    (tmp_path / "lib.so").write_bytes(content)
    assert packages.read_search_path(tmp_path / "lib.so") is None


def test_damaged_libraries_have_no_search_path(tmp_path):
    whole = make_library(tmp_path / "lib.so").read_bytes()
    for size in (*range(0, 256, 7), 257, 290, 512, 513, 520):
        path = tmp_path / "cut.so"
        path.write_bytes(whole[:size])
        assert packages.read_search_path(path) is None


# Libraries ---------------------------------------------------------------------------------------


@pytest.fixture
def linux(monkeypatch):
    """A loader with a path and a cache of its own."""
    given = {"environment": {}, "cache": {}}
    monkeypatch.setattr(packages.platform, "system", lambda: "Linux")
    monkeypatch.setattr(host, "read_start_environment", lambda: given["environment"])
    monkeypatch.setattr(host, "read_library_cache", lambda: given["cache"])
    return given


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


BUILD = {"cuda_version": "12.5.1", "cudnn_version": "9"}


def test_libraries_are_looked_for_in_the_order_of_the_loader(site, tmp_path, linux):
    assert set(packages.read_libraries(BUILD).values()) == {""}
    linux["cache"] = {"libcudart.so.12": "/usr/lib/libcudart.so.12"}
    assert packages.read_libraries(BUILD)["libcudart.so.12"] == "/usr/lib/libcudart.so.12"
    wheel = touch(site / "nvidia/cuda_runtime/lib/libcudart.so.12")
    assert packages.read_libraries(BUILD)["libcudart.so.12"] == wheel
    given = touch(tmp_path / "given/libcudart.so.12")
    linux["environment"] = {"LD_LIBRARY_PATH": f":/none:{tmp_path}/given"}
    assert packages.read_libraries(BUILD)["libcudart.so.12"] == given


def test_cudnn_is_the_one_of_the_builds_version(site, linux):
    wheel = touch(site / "nvidia/cudnn/lib/libcudnn.so.9")
    assert packages.find_cudnn(BUILD) == wheel
    assert packages.find_cudnn({**BUILD, "cudnn_version": "8"}) == ""
    linux["cache"] = {"libcudnn.so.8": "/usr/lib/libcudnn.so.8"}
    assert packages.find_cudnn({**BUILD, "cudnn_version": "8"}) == "/usr/lib/libcudnn.so.8"
    assert packages.find_cudnn({}) == ""


@pytest.mark.parametrize("build", [{}, {"cuda_version": "99.1"}, {"cuda_version": None}])
def test_libraries_of_an_unknown_build_are_not_determined(site, linux, build):
    assert packages.read_libraries(build) is None


def test_the_compiler_of_the_wheel_comes_first(site, tmp_path, linux, monkeypatch):
    program = tmp_path / "bin/ptxas"
    touch(program)
    program.chmod(0o755)
    touch(tmp_path / "cuda/nvvm/libdevice/libdevice.10.bc")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XLA_FLAGS", f"--xla_a=1 --xla_gpu_cuda_data_dir={tmp_path}/cuda")
    found = packages.read_compiler()
    assert found["ptxas"] == str(program)
    assert found["libdevice"] == f"{tmp_path}/cuda/nvvm/libdevice/libdevice.10.bc"
    ptxas = touch(site / "nvidia/cuda_nvcc/bin/ptxas")
    bitcode = touch(site / "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc")
    assert packages.read_compiler() == {"ptxas": ptxas, "libdevice": bitcode}


# Environments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "build"),
    [
        (["tensorflow-2.17.0-cpu_py311h6ac8430_0"], "cpu_py311h6ac8430_0"),
        (["tensorflow-base-2.17.0-cuda120py311h1_3"], "cuda120py311h1_3"),
        (["tensorflow-estimator-2.17.0-cpu_py311h1_0", "numpy-1.26.4-py311h1_0"], ""),
        ([], ""),
    ],
)
def test_condas_build_is_told_by_its_records(tmp_path, files, build):
    for name in files:
        touch(tmp_path / f"conda-meta/{name}.json")
    assert packages.read_installation(tmp_path) == {"conda_build": build, "uv": False}


@pytest.mark.parametrize(
    ("folder", "config", "uv"),
    [
        (".cache/R/reticulate/uv/cache/archive-v0/Q0JlKw", "home = /usr/bin\nuv = 0.8.4\n", True),
        (".cache/uv/environments-v2/abc", "uv = 0.8.4", True),
        (".virtualenvs/mine", "home = /usr/bin\nuv = 0.8.4\n", False),  # made by uv, to stay
        (".cache/uv/archive-v0/abc", "home = /usr/bin\n", False),
        (".cache/uv/archive-v0/abc", None, False),
    ],
)
def test_environments_that_uv_makes_for_a_session(tmp_path, folder, config, uv):
    prefix = tmp_path / folder
    prefix.mkdir(parents=True)
    if config is not None:
        (prefix / "pyvenv.cfg").write_text(config)
    assert packages.read_installation(prefix)["uv"] is uv


def test_other_environments_are_told_by_their_files(tmp_path):
    make_site(tmp_path / ".virtualenvs/r-keras", CPU_BUILD, ["tensorflow_cpu-2.19.1"])
    make_site(tmp_path / "miniconda3/envs/tf", wheels=["tensorflow-2.20.0"], python="python3.12")
    make_site(tmp_path / ".local/share/r-miniconda/envs/r-tf", wheels=[])
    make_site(tmp_path / ".virtualenvs/own")
    (tmp_path / ".virtualenvs/empty").mkdir()
    touch(tmp_path / ".virtualenvs/file")
    found = packages.read_elsewhere(tmp_path, own=tmp_path / ".virtualenvs/own")
    seen = {Path(other["python"]).parts[-3]: other for other in found}
    assert set(seen) == {"r-keras", "tf", "r-tf"}
    assert (seen["r-keras"]["tensorflow"], seen["r-keras"]["is_cuda_build"]) == ("2.19.1", False)
    assert (seen["tf"]["tensorflow"], seen["tf"]["is_cuda_build"]) == ("2.20.0", True)
    assert seen["r-tf"]["tensorflow"] == ""


def test_the_own_environment_is_left_out_behind_a_link_too(tmp_path):
    make_site(tmp_path / "real")
    (tmp_path / ".virtualenvs").mkdir()
    (tmp_path / ".virtualenvs/link").symlink_to(tmp_path / "real")
    assert packages.read_elsewhere(tmp_path, own=tmp_path / "real") == []
    assert len(packages.read_elsewhere(tmp_path, own=tmp_path / "none")) == 1


def test_no_more_environments_are_read_than_can_be_read_fast(tmp_path):
    for index in range(packages.ENVIRONMENTS_LIMIT + 5):
        make_site(tmp_path / f".virtualenvs/env{index:03}")
    found = packages.read_elsewhere(tmp_path, own="/none")
    assert len(found) == packages.ENVIRONMENTS_LIMIT


def test_a_home_without_environments_has_none(tmp_path):
    assert packages.read_elsewhere(tmp_path) == []
    assert packages.read_elsewhere(tmp_path / "none") == []
