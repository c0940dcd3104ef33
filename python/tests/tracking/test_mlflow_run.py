"""Runs of MLflow: a real server of its own on this computer, whose client reads them back."""

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest

import gpukeras

HERE = Path(__file__)
ROOT = HERE.parents[3]
SUPPORT = HERE.parents[1] / "support"
CORE = Path(gpukeras.__file__).parents[1]
# Server and client need a hundred packages, among them pandas: not those of .venv. TensorFlow is
# that of .venv, and so NumPy.
NEEDS = ("mlflow>=3,<4", f"numpy=={version('numpy')}")


SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


@pytest.fixture(scope="module")
def python():
    """A Python with MLflow: that of GPUKERAS_MLFLOW_PYTHON, or one made in .venv-mlflow, once."""
    given = os.environ.get("GPUKERAS_MLFLOW_PYTHON")
    if given:
        return given
    folder = ROOT / ".venv-mlflow"
    path, stamp = folder / "bin/python", folder / "installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([path, "-m", "pip", "install", "--quiet", *NEEDS], check=True)
        own = subprocess.run([path, "-c", SITE], check=True, capture_output=True, text=True)
        beside = Path(own.stdout.strip()) / "beside.pth"
        beside.write_text(f"{sysconfig.get_path('purelib')}\n")
        stamp.touch()
    return str(path)


@pytest.fixture
def server(python, tmp_path):
    """The address of a server whose runs and artifacts lie in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--backend-store-uri", f"sqlite:///{tmp_path}/runs.db", "--workers", "1"]
    options += ["--artifacts-destination", str(tmp_path / "artifacts"), "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [python, "-m", "mlflow", "server", "--host", "127.0.0.1", *options],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if answers(f"{uri}/health"):
                break
            assert child.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.2)
        yield uri
    finally:
        os.killpg(child.pid, 15)
        child.wait()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.nightly
@pytest.mark.tf
def test_a_run_has_parameters_metrics_and_a_model_that_mlflow_loads(python, server, tmp_path):
    child = subprocess.run(
        [python, str(SUPPORT / "mlflow_child.py"), server, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{CORE}:{SUPPORT}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    found = json.loads(child.stdout.splitlines()[-1])
    run = found["run"]
    assert found["ended"] == {"where": f"MLflow at {server}, run {run}", "fault": ""}
    assert (found["name"], found["status"]) == ("first", "FINISHED")
    assert found["parameters"]["epochs"] == "3"
    assert found["parameters"]["optimizer"] == "SGD"
    assert found["parameters"]["rows"] == "480"
    assert found["metrics_are_those_of_the_history"]
    assert found["steps"] == [1, 2, 3]
    assert found["artifacts"] == ["history.png", "model"]
    assert found["same_predictions"]
    assert found["history_in_file"]
    assert found["unreachable"]["stopped"] == "completed"
    assert found["unreachable"]["fault"].startswith("its start failed: MlflowException")
