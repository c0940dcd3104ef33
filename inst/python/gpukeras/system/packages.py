"""Reads from files which TensorFlow is installed, how it was built and what it requires.

This is the cheapest layer of `gpu_check()`: it imports and executes nothing, so it also describes a
broken TensorFlow. Readers follow the convention of `host`: None means "not determined", an empty
string or list "looked for and not found".
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import os
import platform
import re
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from gpukeras.system import host
from gpukeras.system.facts import WHEELS

# Distributions with which JAX uses a GPU of NVIDIA, for CUDA 12 and for CUDA 13.
JAX_PLUGINS = ("jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt")
PACKAGES = (
    *WHEELS,
    "tensorflow-metal",
    "tensorboard",
    "keras",
    "numpy",
    "torch",
    "jax",
    "jaxlib",
    *JAX_PLUGINS,
    "nvidia-ml-py",
)
# Libraries that TensorFlow opens on import, by CUDA's major version; cuDNN's is in build_info.
SONAMES = {
    "12": (
        "libcudart.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcufft.so.11",
        "libcusolver.so.11",
        "libcusparse.so.12",
    )
}
BUILD_INFO = "tensorflow/python/platform/build_info.py"
# Folders in which reticulate and conda keep environments, relative to the home folder.
ENVIRONMENTS = (
    ".virtualenvs/*",
    "miniconda3/envs/*",
    "miniforge3/envs/*",
    "anaconda3/envs/*",
    ".local/share/r-miniconda/envs/*",
    "Library/r-miniconda*/envs/*",
)
ENVIRONMENTS_LIMIT = 40  # a home folder may be on a slow disk


# Packages ----------------------------------------------------------------------------------------


def read_packages() -> dict[str, str]:
    """Returns the versions of the relevant packages, including NVIDIA's libraries."""
    versions = _list_installed()
    requested = [name for name in versions if name in PACKAGES or name.startswith("nvidia-")]
    return {name: versions[name] for name in sorted(requested)}


def _list_installed() -> dict[str, str]:
    versions: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        for name, version in _list_distributions(Path(folder or ".")):
            versions.setdefault(name, version)  # Python imports the first on the path
    return versions


def _list_distributions(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields names and versions from metadata folder names, much faster than reading the files."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in sorted(entries):
        match = re.fullmatch(r"([^-]+)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", entry)
        if match:
            yield normalize_name(match.group(1)), match.group(2)


def normalize_name(name: str) -> str:
    """Normalises a distribution's name as in PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_tensorflow() -> Path | None:
    """Finds the folder of TensorFlow with PathFinder; other finders may have side effects."""
    spec = importlib.machinery.PathFinder.find_spec("tensorflow")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def find_version(site: Path) -> str:
    """Returns the version of the distribution of `tensorflow` in a site-packages folder, or ""."""
    versions = dict(_list_distributions(site))
    return next((versions[name] for name in WHEELS if name in versions), "")


def read_requirements() -> list[dict[str, str]] | None:
    """Returns the unmet requirements of TensorFlow's extra `and-cuda`; None if not determined."""
    folder = find_tensorflow()
    info = read_build_info(folder.parent) if folder else None
    if folder is None or info is None or info.get("is_cuda_build") is not True:
        return None
    installed = _list_installed()
    wheel = next((name for name in WHEELS if name in installed), None)
    if wheel is None:
        return None
    try:
        asked = importlib.metadata.requires(wheel)
    except importlib.metadata.PackageNotFoundError:
        return None
    return None if asked is None else parse_requirements(asked, installed)


def parse_requirements(
    asked: list[str], installed: Mapping[str, str]
) -> list[dict[str, str]] | None:
    """Returns the requirements of the extra `and-cuda` that are missing or have another version.

    Args:
        asked: Requirement lines from `importlib.metadata.requires()`.
        installed: Versions by distribution.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:  # rare, because TensorFlow depends on it
        return None
    extra, plain = {"extra": "and-cuda"}, {"extra": ""}
    requirements = []
    for requirement in map(Requirement, asked):
        marker, name = requirement.marker, normalize_name(requirement.name)
        if marker is None or not marker.evaluate(extra) or marker.evaluate(plain):
            continue
        version = installed.get(name, "")
        if not version or not requirement.specifier.contains(version, prereleases=True):
            requested = ",".join(sorted(map(str, requirement.specifier), reverse=True))
            requirements.append({"name": name, "wanted": requested, "installed": version})
    return requirements


# The build ---------------------------------------------------------------------------------------


def read_build() -> dict[str, Any] | None:
    """Reads from TensorFlow's files how it was built, without importing it."""
    folder = find_tensorflow()
    build = read_build_info(folder.parent) if folder else None
    if folder is None or build is None:
        return None
    build["version"] = find_version(folder.parent)
    if build.get("is_cuda_build"):
        searched = read_search_path(folder / "libtensorflow_framework.so.2")
        build["searches_cusolver"] = None if searched is None else "nvidia/cusolver/lib" in searched
    return build


def read_build_info(site: Path) -> dict[str, Any] | None:
    """Parses TensorFlow's `build_info` in a site-packages folder without executing it."""
    try:
        tree = ast.parse((site / BUILD_INFO).read_text())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and [*map(ast.unparse, node.targets)] == ["build_info"]:
            value = node.value  # collections.OrderedDict([(name, value), ...])
            with suppress(IndexError, TypeError, ValueError):
                pairs = value.args[0] if isinstance(value, ast.Call) else value
                return dict(ast.literal_eval(pairs))
    return None


# Parts of the 64-bit little-endian ELF format that hold a library's search path.
PROGRAM_HEADERS = struct.Struct("<32xQ14xHH")  # file header: offset, entry size, entries
PROGRAM_HEADER = struct.Struct("<II6Q")  # type, flags, offset, address, -, size in file, -, -
LOAD, DYNAMIC = 1, 2
END, STRINGS, STRINGS_SIZE, RPATH, RUNPATH = 0, 5, 10, 15, 29


def read_search_path(library: Path) -> str | None:
    """Reads RUNPATH or RPATH of a library, "" if it has none; None if it cannot be read.

    It reads only the few pages with the path, not the whole file of up to 160 MB.
    """
    try:
        with library.open("rb") as file:
            return _parse_search_path(file)
    except (OSError, struct.error, LookupError, ValueError):
        return None


def _parse_search_path(file: BinaryIO) -> str | None:
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        return None
    offset, size, count = PROGRAM_HEADERS.unpack_from(header)
    table = _read_at(file, offset, size * count)
    parts = [PROGRAM_HEADER.unpack_from(table, at * size) for at in range(count)]
    loads = [(part[3], part[5], part[2]) for part in parts if part[0] == LOAD]
    dynamic = next((_read_at(file, part[2], part[5]) for part in parts if part[0] == DYNAMIC), b"")
    whole = len(dynamic) - len(dynamic) % 16
    tags = dict(struct.iter_unpack("<QQ", dynamic[:whole]))
    address = tags[STRINGS]
    starts = [address - low + at for low, length, at in loads if low <= address < low + length]
    strings = _read_at(file, starts[0], tags[STRINGS_SIZE])
    at = tags.get(RUNPATH, tags.get(RPATH))
    return "" if at is None else strings[at : strings.index(b"\0", at)].decode(errors="replace")


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


# Libraries and tools -----------------------------------------------------------------------------


def read_libraries(build: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns the path of each CUDA library this build needs, "" if missing; None if unknown."""
    cuda = SONAMES.get(_major(build.get("cuda_version")))
    return None if cuda is None else _find_libraries([*cuda, *_name_cudnn(build)])


def find_cudnn(build: Mapping[str, Any]) -> str:
    """Returns the path of the cuDNN that TensorFlow would load, or ""."""
    found = _find_libraries(_name_cudnn(build)) or {}
    return next(iter(found.values()), "")


def _name_cudnn(build: Mapping[str, Any]) -> list[str]:
    major = _major(build.get("cudnn_version"))
    return [f"libcudnn.so.{major}"] if major else []


def _find_libraries(names: Sequence[str]) -> dict[str, str] | None:
    """Returns the path of each library, "" if missing; None where TensorFlow has none."""
    folder = find_tensorflow()
    if not names or folder is None or platform.system() != "Linux":
        return None
    # In the loader's search order. The loader reads LD_LIBRARY_PATH once, at process start.
    started_with = host.read_start_environment().get("LD_LIBRARY_PATH", "")
    folders = [Path(each) for each in started_with.split(":") if each]
    folders += [*sorted(folder.parent.glob("nvidia/*/lib")), Path(sys.prefix) / "lib"]
    cached = host.read_library_cache()
    return {
        name: next((str(each / name) for each in folders if (each / name).exists()), "")
        or cached.get(name, "")
        for name in names
    }


def _major(version: Any) -> str:
    return str(version or "").split(".")[0]


def read_compiler() -> dict[str, str] | None:
    """Returns the paths of XLA's compiler tools, `ptxas` and `libdevice`, "" if absent."""
    folder = find_tensorflow()
    if folder is None or platform.system() != "Linux":
        return None
    wheel = folder.parent / "nvidia/cuda_nvcc"
    roots = [
        wheel,
        *_configured_toolkit(),
        *sorted(Path("/usr/local").glob("cuda*")),
        Path(sys.prefix),
    ]
    bitcode = [root / "nvvm/libdevice/libdevice.10.bc" for root in roots]
    assembler = wheel / "bin/ptxas"
    return {
        "ptxas": str(assembler) if assembler.exists() else shutil.which("ptxas") or "",
        "libdevice": next((str(path) for path in bitcode if path.exists()), ""),
    }


def _configured_toolkit() -> list[Path]:
    flags = re.search(r"--xla_gpu_cuda_data_dir=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return [Path(flags.group(1))] if flags else []


# Environments ------------------------------------------------------------------------------------


def read_installation(prefix: str | Path = sys.prefix) -> dict[str, Any]:
    """Returns conda's build string of TensorFlow ("" if none), and whether uv made the environment.

    Args:
        prefix: Folder of the environment.
    """
    prefix = Path(prefix)
    parsed = [
        path.stem.rsplit("-", 2) for path in sorted(prefix.glob("conda-meta/tensorflow*.json"))
    ]
    builds = [parts[2] for parts in parsed if parts[0] in ("tensorflow", "tensorflow-base")]
    return {"conda_build": builds[0] if builds else "", "uv": is_ephemeral(prefix)}


def is_ephemeral(prefix: Path) -> bool:
    """Whether uv created an environment in its cache for one run, as `py_require()` does."""
    cached = re.compile(r"(?:archive|environments|builds)-v\d+")
    config = host.read_text(prefix / "pyvenv.cfg") or ""
    made_by_uv = re.search(r"^uv\s*=", config, re.MULTILINE) is not None
    return made_by_uv and any(cached.fullmatch(part) for part in prefix.parts)


def read_elsewhere(
    home: str | Path | None = None, own: str | Path = sys.prefix
) -> list[dict[str, Any]] | None:
    """Finds this user's other environments with TensorFlow by their files.

    Args:
        home: The home folder.
        own: The running environment, which is excluded.
    """
    try:
        home = Path.home() if home is None else Path(home)
        folders = sorted(path for pattern in ENVIRONMENTS for path in home.glob(pattern))
        own = Path(own).resolve()
        others = [path for path in folders[:ENVIRONMENTS_LIMIT] if path.resolve() != own]
        return [
            environment_facts for path in others if (environment_facts := _read_environment(path))
        ]
    except (OSError, RuntimeError):  # no home folder
        return None


def _read_environment(prefix: Path) -> dict[str, Any] | None:
    windows = prefix / "Lib/site-packages"
    for site in (*sorted(prefix.glob("lib/python3*/site-packages")), windows):
        info = read_build_info(site)
        if info is not None:
            programs = (prefix / "bin/python", prefix / "python.exe", prefix / "Scripts/python.exe")
            python = next((path for path in programs if path.exists()), programs[0])
            cuda = info.get("is_cuda_build") is True
            version = find_version(site)
            return {"python": str(python), "tensorflow": version, "is_cuda_build": cuda}
    return None
