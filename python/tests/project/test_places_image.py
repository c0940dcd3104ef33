"""Without root buildah builds the images of inst/places: a demo runs in one, a server in the other.

Takes ten minutes, 4 GB in TMPDIR, a mirror of Debian and PyPI. The base is made by mmdebstrap, so
that no registry of images is needed; DEBIAN_MIRROR names another mirror. Under root a user is made
for it, with numbers of users of its own, and removed.
"""

import getpass
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
PROGRAMS = ("buildah", "mmdebstrap", "newuidmap")


def explain_missing():
    """Returns why no image can be built here, or ""."""
    if None in map(shutil.which, PROGRAMS):
        return f"needs {', '.join(PROGRAMS)}"
    if os.geteuid() != 0 and f"{getpass.getuser()}:" not in Path("/etc/subuid").read_text():
        return "this user has no numbers of users in /etc/subuid"
    return ""


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.skipif(explain_missing() != "", reason=explain_missing()),
]


def run(*arguments, **options):
    """Runs a program; returns what it printed, and shows the end of all it said if it fails."""
    result = subprocess.run(
        arguments, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options
    )
    said = result.stdout[-3000:] + result.stderr[-3000:]
    assert result.returncode == 0, f"{arguments[0]} failed:\n{said}"
    return result.stdout.strip()


class Builder:
    """A user without rights who builds images in a folder.

    Args:
        folder: The user's home, with all that is built.
        name: The user's name, where root takes this user's place.
    """

    def __init__(self, folder, name=None):
        self.folder, self.user = folder, {}
        if name:
            self.user = {"user": name, "group": name, "extra_groups": []}
        # Users of the images, who are others on this computer, pass through them.
        folder.chmod(0o711)
        (folder / "tmp").mkdir(mode=0o711)
        (folder / "run").mkdir(mode=0o700)
        home = {"HOME": folder, "TMPDIR": folder / "tmp", "XDG_RUNTIME_DIR": folder / "run"}
        self.environment = os.environ | {each: str(path) for each, path in home.items()}
        skipped = [line for line in (ROOT / ".dockerignore").read_text().split() if line[0] != "#"]
        skipped = shutil.ignore_patterns(*[line.removeprefix("**/") for line in skipped])
        shutil.copytree(ROOT, folder / "sources", ignore=skipped, symlinks=True)
        if name:
            run("chown", "--recursive", f"{name}:", str(folder))

    def run(self, *arguments):
        return run(*arguments, cwd=self.folder, env=self.environment, **self.user)

    def buildah(self, *arguments):
        return self.run("buildah", "--storage-driver", "overlay", *arguments)


@pytest.fixture(scope="module")
def builder():
    """A builder, of whom nothing is left."""
    name = f"gpukeras-{os.getpid()}" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="gpukeras-image-") as folder:
        if name:
            run("useradd", "--no-create-home", "--home-dir", folder, name)
        made = None
        try:
            made = Builder(Path(folder), name)
            yield made
        finally:
            if made:
                made.buildah("rm", "--all")
                # What users of the images own, only the user's own namespace removes.
                made.run("buildah", "unshare", "rm", "-rf", f"{folder}/.local")
            if name:
                run("userdel", name)


@pytest.fixture(scope="module")
def base(builder):
    """An image of Debian 12, which trusts the certificates that this computer trusts."""
    mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
    builder.run("mmdebstrap", "--mode=unshare", "--variant=minbase", "bookworm", "base.tar", mirror)
    container = builder.buildah("from", "scratch")
    builder.buildah("add", container, "base.tar", "/")
    if TRUSTED.exists():
        builder.buildah("add", container, str(TRUSTED), "/etc/trusted.crt")
        builder.buildah("config", "--env", "PIP_CERT=/etc/trusted.crt", container)
    builder.buildah("commit", "--rm", container, "localhost/debian-base")
    return "localhost/debian-base"


def start(builder, base, recipe):
    """Builds an image; returns a function that runs a command in a container of it."""
    given = ("--isolation", "chroot", "--pull=never")
    image = f"localhost/{recipe.lower()}"
    named = ("--build-arg", f"BASE={base}", "--file", f"sources/inst/places/{recipe}")
    builder.buildah("build", *given, *named, "--tag", image, "sources")
    container = builder.buildah("from", "--pull=never", image)
    return lambda *command: builder.buildah(
        "run", "--isolation", "chroot", container, "--", *command
    )


def test_who_builds_is_not_root(builder):
    assert json.loads(builder.buildah("info"))["host"]["rootless"] is True
    assert builder.run("id", "--user") != "0"


def test_the_demo_runs_in_an_image_without_root(builder, base):
    inside = start(builder, base, "Dockerfile")
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


def test_the_server_answers_in_an_image_without_r_and_root(builder, base):
    inside = start(builder, base, "Dockerfile.serve")
    assert inside("id", "--user", "--name") == "server"
    said = inside("/opt/venv/bin/python", "-c", SERVED)
    assert json.loads(said.splitlines()[-1]) == {"predictions": [3]}
