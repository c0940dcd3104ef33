"""The images of inst/places are built by buildah: a demo runs in one, a server in the other.

Takes ten minutes, 8 GB in TMPDIR, a mirror of Debian and PyPI. The base is made by debootstrap, so
that no registry of images is needed; DEBIAN_MIRROR names another mirror.
"""

import json
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


@pytest.fixture(scope="module")
def buildah():
    """A function that runs buildah on a storage of its own, of which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="gpukeras-image-") as folder:
        storage = ("--root", f"{folder}/storage", "--runroot", f"{folder}/run")

        def call(*arguments):
            return run("buildah", *storage, "--storage-driver", "vfs", *arguments)

        yield call
        call("umount", "--all")
        call("rm", "--all")


@pytest.fixture(scope="module")
def base(buildah):
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


def start(buildah, base, recipe):
    """Builds an image; returns a function that runs a command in a container of it."""
    given = ("--isolation", "chroot", "--pull=never")
    image = f"localhost/{recipe.lower()}"
    path = str(ROOT / "inst" / "places" / recipe)
    named = ("--build-arg", f"BASE={base}", "--file", path, "--tag", image)
    buildah("build", *given, *named, str(ROOT))
    container = buildah("from", "--pull=never", image)
    return lambda *command: buildah("run", "--isolation", "chroot", container, "--", *command)


def test_the_demo_runs_in_an_image_without_root(buildah, base):
    inside = start(buildah, base, "Dockerfile")
    assert inside("id", "--user", "--name") == "trainer"
    said = inside("make", "--no-print-directory", "demo")
    assert "mean absolute error of the network" in said
    assert "GPU" in said.partition("5. Is a GPU used?")[2]


SERVED = """
import json, subprocess, sys, urllib.request
import keras
layers = [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")]
keras.Sequential(layers).save("/tmp/m.keras")
command = [sys.executable, "-m", "gpukeras", "serve", "/tmp/m.keras"]
with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
    url = json.loads(server.stdout.readline())["url"]
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + "predict", b'{"x": [[1, 2]]}', headers)
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read().decode())
    server.terminate()
"""


def test_the_server_answers_in_an_image_without_r_and_root(buildah, base):
    inside = start(buildah, base, "Dockerfile.serve")
    assert inside("id", "--user", "--name") == "server"
    said = inside("/opt/venv/bin/python", "-c", SERVED)
    assert json.loads(said.splitlines()[-1]) == {"predictions": [3]}
