"""The image of inst/places/Dockerfile is built by buildah, and its demo runs in it.

Takes ten minutes, 8 GB in TMPDIR, a mirror of Debian and PyPI. The base is made by debootstrap, so
that no registry of images is needed; DEBIAN_MIRROR names another mirror.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIMIT_S = 3600  # a guard against hanging, never a measure
TRUSTED = Path("/etc/ssl/certs/ca-certificates.crt")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (shutil.which("buildah") and shutil.which("debootstrap")),
        reason="needs root, buildah and debootstrap",
    ),
]


def run(*arguments):
    """Runs a program; returns what it printed, and shows the end of all it said if it fails."""
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    said = result.stdout[-3000:] + result.stderr[-3000:]
    assert result.returncode == 0, f"{arguments[0]} failed:\n{said}"
    return result.stdout.strip()


@pytest.fixture
def buildah():
    """A function that runs buildah on a storage of its own, of which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="gpukeras-image-") as folder:
        storage = ("--root", f"{folder}/storage", "--runroot", f"{folder}/run")

        def call(*arguments):
            return run("buildah", *storage, "--storage-driver", "vfs", *arguments)

        yield call
        call("umount", "--all")
        call("rm", "--all")


def make_base(buildah):
    """An image of Debian 12, which trusts the certificates that this computer trusts."""
    container = buildah("from", "scratch")
    root = buildah("mount", container)
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
    run("debootstrap", "--variant=minbase", "bookworm", root, mirror)
    if TRUSTED.exists():
        shutil.copy(TRUSTED, f"{root}/etc/trusted.crt")
        buildah("config", "--env", "PIP_CERT=/etc/trusted.crt", container)
    buildah("umount", container)
    buildah("commit", "--rm", container, "localhost/debian-base")
    return "localhost/debian-base"


def test_the_image_is_built_and_its_demo_runs_without_root(buildah):
    given = ("--isolation", "chroot", "--build-arg", f"BASE={make_base(buildah)}")
    recipe = str(ROOT / "inst" / "places" / "Dockerfile")
    buildah("build", "--pull=never", *given, "--file", recipe, "--tag", "gpukeras", str(ROOT))
    container = buildah("from", "--pull=never", "localhost/gpukeras")
    inside = ("run", "--isolation", "chroot", container, "--")
    assert buildah(*inside, "id", "--user", "--name") == "trainer"
    said = buildah(*inside, "make", "--no-print-directory", "demo")
    assert "mean absolute error of the network" in said
    assert "GPU" in said.partition("5. Is a GPU used?")[2]
