"""Python packages, read from files: which TensorFlow this is, how it was built, what it needs.

The cheapest layer of `gpu_check()`: nothing is imported or executed, so that a broken TensorFlow
can be described too. Readers follow `host`'s convention: None is "not determined", an empty text
or list "looked, and it is not there".
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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from gpukeras.system import host
from gpukeras.system.facts import WHEELS

PACKAGES = (
    *WHEELS,
    "tensorflow-metal",
    "tensorboard",
    "keras",
    "numpy",
    "torch",
    "jax",
    "jaxlib",
    "nvidia-ml-py",
)
# Libraries that TensorFlow opens at its start, by CUDA's major version; cuDNN's is in build_info.
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
# Where reticulate and conda keep environments, below the home folder.
ENVIRONMENTS = (
    ".virtualenvs/*",
    "miniconda3/envs/*",
    "miniforge3/envs/*",
    "anaconda3/envs/*",
    ".local/share/r-miniconda/envs/*",
    "Library/r-miniconda*/envs/*",
)
ENVIRONMENTS_LIMIT = 40  # a home folder may lie on a slow disk


# Packages ----------------------------------------------------------------------------------------


def read_packages() -> dict[str, str]:
    """Versions of the packages that matter, NVIDIA's libraries among them."""
    found = _list_installed()
    requested = [name for name in found if name in PACKAGES or name.startswith("nvidia-")]
    return {name: found[name] for name in sorted(requested)}


def _list_installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        for name, version in _list_distributions(Path(folder or ".")):
            found.setdefault(name, version)  # the first on the path is the one imported
    return found


def _list_distributions(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and versions by the names of metadata folders, which are much faster than the files."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in sorted(entries):
        match = re.fullmatch(r"([^-]+)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", entry)
        if match:
            yield normalize_name(match.group(1)), match.group(2)


def normalize_name(name: str) -> str:
    """A distribution's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_tensorflow() -> Path | None:
    """The folder of the installed TensorFlow; other finders may act on being asked for it."""
    spec = importlib.machinery.PathFinder.find_spec("tensorflow")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def find_version(site: Path) -> str:
    """Version of the distribution that owns `tensorflow` in a folder of packages, or ""."""
    found = dict(_list_distributions(site))
    return next((found[name] for name in WHEELS if name in found), "")


def read_requirements() -> list[dict[str, str]] | None:
    """What TensorFlow's extra `and-cuda` asks for and does not have; None if not determined."""
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
    """The requirements of the extra `and-cuda` that are missing or of another version.

    Args:
        asked: Lines as `importlib.metadata.requires()` gives them.
        installed: Versions by distribution.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:  # TensorFlow depends on it, so hardly ever
        return None
    extra, plain = {"extra": "and-cuda"}, {"extra": ""}
    found = []
    for requirement in map(Requirement, asked):
        marker, name = requirement.marker, normalize_name(requirement.name)
        if marker is None or not marker.evaluate(extra) or marker.evaluate(plain):
            continue
        version = installed.get(name, "")
        if not version or not requirement.specifier.contains(version, prereleases=True):
            requested = ",".join(sorted(map(str, requirement.specifier), reverse=True))
            found.append({"name": name, "wanted": requested, "installed": version})
    return found


# The build ---------------------------------------------------------------------------------------


def read_build() -> dict[str, Any] | None:
    """How TensorFlow was built, from its own files, without importing it."""
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
    """TensorFlow's `build_info` in a folder of packages, parsed and not executed."""
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


# ELF, for 64 bits and little endian: where a library has the loader look for the ones it opens.
PROGRAM_HEADERS = struct.Struct("<32xQ14xHH")  # offset, size of one, number, in the file's header
PROGRAM_HEADER = struct.Struct("<II6Q")  # type, flags, offset, address, -, size in the file, -, -
LOAD, DYNAMIC = 1, 2
END, STRINGS, STRINGS_SIZE, RPATH, RUNPATH = 0, 5, 10, 15, 29


def read_search_path(library: Path) -> str | None:
    """RUNPATH or RPATH of a library, "" if it has none; None without a library.

    Its own few pages are read, not the whole file, which may have 160 MB.
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
    """Where each CUDA library lies that this build needs, "" if nowhere; None if not known."""
    cuda = SONAMES.get(_major(build.get("cuda_version")))
    folder = find_tensorflow()
    if cuda is None or folder is None or platform.system() != "Linux":
        return None
    cudnn = _major(build.get("cudnn_version"))
    names = [*cuda, *([f"libcudnn.so.{cudnn}"] if cudnn else [])]
    folders = _library_folders(folder.parent)
    cached = host.read_library_cache()
    return {name: _find_library(name, folders) or cached.get(name, "") for name in names}


def find_cudnn(build: Mapping[str, Any]) -> str:
    """The cuDNN that TensorFlow would load, or ""."""
    folder, major = find_tensorflow(), _major(build.get("cudnn_version"))
    if folder is None or not major or platform.system() != "Linux":
        return ""
    name = f"libcudnn.so.{major}"
    found = _find_library(name, _library_folders(folder.parent))
    return found or host.read_library_cache().get(name, "")


def _major(version: Any) -> str:
    return str(version or "").split(".")[0]


def _library_folders(site: Path) -> list[Path]:
    # The loader's own order. It reads LD_LIBRARY_PATH once, when the process starts.
    started_with = host.read_start_environment().get("LD_LIBRARY_PATH", "")
    given = [Path(folder) for folder in started_with.split(":") if folder]
    return [*given, *sorted(site.glob("nvidia/*/lib")), Path(sys.prefix) / "lib"]


def _find_library(name: str, folders: list[Path]) -> str:
    return next((str(folder / name) for folder in folders if (folder / name).exists()), "")


def read_compiler() -> dict[str, str] | None:
    """What XLA compiles with: NVIDIA's assembler and device functions, "" if absent."""
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
    """Who installed TensorFlow: conda with which build, or uv for one session.

    Args:
        prefix: The environment's folder.
    """
    prefix = Path(prefix)
    found = [
        path.stem.rsplit("-", 2) for path in sorted(prefix.glob("conda-meta/tensorflow*.json"))
    ]
    builds = [parts[2] for parts in found if parts[0] in ("tensorflow", "tensorflow-base")]
    return {"conda_build": builds[0] if builds else "", "uv": is_ephemeral(prefix)}


def is_ephemeral(prefix: Path) -> bool:
    """Whether uv made an environment in its cache for one run, as `py_require()` has it do."""
    cached = re.compile(r"(?:archive|environments|builds)-v\d+")
    config = host.read_text(prefix / "pyvenv.cfg") or ""
    made_by_uv = re.search(r"^uv\s*=", config, re.MULTILINE) is not None
    return made_by_uv and any(cached.fullmatch(part) for part in prefix.parts)


def read_elsewhere(
    home: str | Path | None = None, own: str | Path = sys.prefix
) -> list[dict[str, Any]] | None:
    """Other environments of this user that hold TensorFlow, told from their files alone.

    Args:
        home: The home folder.
        own: The environment that runs, which is left out.
    """
    try:
        home = Path.home() if home is None else Path(home)
        folders = sorted(path for pattern in ENVIRONMENTS for path in home.glob(pattern))
        own = Path(own).resolve()
        others = [path for path in folders[:ENVIRONMENTS_LIMIT] if path.resolve() != own]
        return [found for path in others if (found := _read_environment(path))]
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
