"""Lists known bugs of certain versions: one record per bug, with a pure function of facts.

A record states published knowledge; the rules in `diagnostics.rules` prove whether the bug has an
effect here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpukeras.system.facts import Facts, find_release, list_capabilities, parse_numbers

# CUDA's compilers support Blackwell, compute capability 10.0 and later, since 12.8 (release notes).
BLACKWELL = (10, 0)
BLACKWELL_CUDA = (12, 8)
# cuDNN's support matrix starts with Turing, 7.5, since 9.11; 9.10.2 still lists Maxwell to Volta.
CUDNN_TURING = (9, 11)
TURING = (7, 5)
# Metadata of the wheels: `nvidia-cudnn-cu12` 8.9.7 in 2.16 and 2.17, >=9.3 from 2.18 on.
BUILT_FOR_CUDNN = (((2, 18), (9, 3)), ((2, 16), (8, 9)))

# For what TensorFlow lacks and JAX has; JAX, Installation: supported platforms.
OR_JAX = (
    ' Or train on JAX, which can use this GPU: install_gpukeras(backend = "jax"), then restart R '
    'and begin with gpu_setup(backend = "jax").'
)


@dataclass(frozen=True)
class KnownBug:
    """A bug that certain versions have.

    A comment above each bug names the affected versions and the reference.

    Args:
        id: Identifier such as "cusolver".
        applies: Function of facts that returns evidence of the bug in this installation, or None.
        cause: Id of the cause (see `diagnostics.rules`) that covers its effect.
        what: One sentence on what fails.
        mends: gpukeras' automatic workaround: "preload", "jit off" or "".
        fix: What the user can do, as in `diagnostics.rules`.
    """

    id: str
    applies: Callable[[Facts], str | None]
    cause: str
    what: str
    mends: str
    fix: str


def find_bugs(facts: Facts) -> tuple[tuple[KnownBug, str], ...]:
    """Returns the bugs of this installation, each with its evidence."""
    return tuple((bug, sign) for bug in KNOWN_BUGS if (sign := bug.applies(facts)))


# Rules on facts ----------------------------------------------------------------------------------


def has_cusolver_bug(facts: Facts) -> str | None:
    """Returns evidence that the wheel's cusolver is in a folder that TensorFlow does not search."""
    path = facts.libraries.get("libcusolver.so.11", "")
    lost = facts.build.searches_cusolver is False
    if facts.build.is_cuda_build is not True or not lost or "/nvidia/cusolver/" not in path:
        return None
    return f"{path} is there, but libtensorflow_framework does not search that folder"


def has_path_bug(facts: Facts) -> str | None:
    """Returns evidence of TensorFlow 2.16.1 with CUDA libraries from wheels."""
    wheels = [name for name in facts.packages if name.startswith("nvidia-cu")]
    if find_release(facts) != (2, 16, 1) or facts.build.is_cuda_build is not True or not wheels:
        return None
    return f"tensorflow 2.16.1 does not search the folders of {len(wheels)} nvidia wheels"


def has_new_cudnn(facts: Facts) -> str | None:
    """Returns evidence of a cuDNN without code for one of the GPUs."""
    version = find_cudnn_version(facts)
    old = sorted(card for card in list_capabilities(facts) if card < TURING)
    if version < CUDNN_TURING or not old:
        return None
    return (
        f"cuDNN {format_version(version)} needs compute capability 7.5, the GPU has "
        f"{format_version(old[0])}"
    )


def has_old_cudnn(facts: Facts) -> str | None:
    """Returns evidence of a cuDNN older than the one TensorFlow was compiled with."""
    version, release = find_cudnn_version(facts), find_release(facts)
    needed = next((cudnn for since, cudnn in BUILT_FOR_CUDNN if release >= since), ())
    if facts.build.is_cuda_build is not True or not version or version >= needed:
        return None
    return (
        f"cuDNN {format_version(version)} is loaded, TensorFlow {format_version(release)} was "
        f"compiled with {format_version(needed)}"
    )


def has_blackwell_bug(facts: Facts) -> str | None:
    """Returns evidence of an XLA whose CUDA version does not support one of the GPUs."""
    cuda = facts.build.cuda_version
    aborting = [card for card in list_capabilities(facts) if aborts_xla(card, parse_numbers(cuda))]
    if facts.build.is_cuda_build is not True or not aborting:
        return None
    return (
        f"compute capability {format_version(aborting[0])}, and a TensorFlow built with CUDA {cuda}"
    )


def aborts_xla(capability: tuple[int, ...], cuda: tuple[int, ...]) -> bool:
    """Whether XLA of a CUDA version aborts the process on a GPU; False if either is unknown."""
    return capability >= BLACKWELL and () < cuda < BLACKWELL_CUDA


def has_broken_metal(facts: Facts) -> str | None:
    """Returns evidence of a tensorflow-metal that the installed TensorFlow cannot load."""
    metal = facts.packages.get("tensorflow-metal")
    release = find_release(facts)
    if facts.platform.system != "Darwin" or not metal or release < (2, 18):
        return None
    return f"tensorflow-metal {metal} with TensorFlow {format_version(release)}"


def find_cudnn_version(facts: Facts) -> tuple[int, ...]:
    """Returns the version of the cuDNN that would be loaded, such as (9, 10, 2), or ().

    The major version counts 10,000 in cuDNN 9 and 1,000 in cuDNN 8 (cudnn_version.h).
    """
    number = facts.cudnn.version
    if number is None or number < 1000:
        return ()
    unit = 10_000 if number >= 90_000 else 1_000
    major, rest = divmod(number, unit)
    return major, rest // 100, rest % 100


def format_version(numbers: tuple[int, ...]) -> str:
    """Formats version numbers: (9, 10, 2) is "9.10.2"."""
    return ".".join(map(str, numbers))


# The bugs ----------------------------------------------------------------------------------------

# tensorflow 2.21.0: tensorflow PR #112973 (caused by #102733), #117916, #117538
CUSOLVER = KnownBug(
    "cusolver",
    has_cusolver_bug,
    "C9",
    "TensorFlow 2.21 does not find its own libcusolver.",
    "preload",
    "Restart R, with library(gpukeras) and gpu_setup() before anything else uses Python: it loads "
    'the library first. Or: {python} -m pip install "tensorflow[and-cuda]==2.20.0"',
)
# tensorflow 2.16.1: tensorflow #63362
PIP_PATHS = KnownBug(
    "pip paths",
    has_path_bug,
    "C10",
    "TensorFlow 2.16.1 does not find the CUDA libraries that pip installed.",
    "preload",
    '{python} -m pip install "tensorflow[and-cuda]==2.16.2"',
)
# nvidia-cudnn-cu12 >=9.11: cuDNN support matrices 9.10.2 and 9.11; immich PR #23110
NEW_CUDNN = KnownBug(
    "new cuDNN",
    has_new_cudnn,
    "C13",
    "This cuDNN has no code for GPUs as old as this one.",
    "",
    '{python} -m pip install "nvidia-cudnn-cu12<9.11"',
)
# nvidia-cudnn-cu12 <9.3 with TensorFlow 2.18 and later, <8.9 with 2.16 and 2.17: tensorflow #60913
OLD_CUDNN = KnownBug(
    "old cuDNN",
    has_old_cudnn,
    "C12",
    "cuDNN is older than the one that TensorFlow was compiled with.",
    "",
    '{python} -m pip install --upgrade "tensorflow[and-cuda]=={version}" (another package, such as '
    "torch, may have asked for the old one: give each its own environment)",
)
# tensorflow built with CUDA before 12.8, all wheels up to 2.21: tensorflow #111958; openxla/xla
# PR #47978
BLACKWELL_XLA = KnownBug(
    "Blackwell",
    has_blackwell_bug,
    "C17",
    "XLA of this TensorFlow ends the process on a GPU of this generation.",
    "jit off",
    "Train without XLA: gpu_setup(jit = FALSE), compile(model, jit_compile = FALSE). Or use "
    "NVIDIA's container nvcr.io/nvidia/tensorflow." + OR_JAX,
)
# tensorflow-metal 1.x with TensorFlow 2.18 and later: tensorflow #81987, #84167, #63854
METAL = KnownBug(
    "metal",
    has_broken_metal,
    "C4",
    "tensorflow-metal keeps this TensorFlow from being imported.",
    "",
    "{python} -m pip uninstall -y tensorflow-metal",
)
KNOWN_BUGS = (CUSOLVER, PIP_PATHS, NEW_CUDNN, OLD_CUDNN, BLACKWELL_XLA, METAL)
