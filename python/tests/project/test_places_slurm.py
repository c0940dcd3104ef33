"""slurm.sh of inst/places under a real Slurm of two computers, which are two networks of this one.

Nothing is left of it: its processes end with their namespace, its files lie in the test's folder.
Takes two minutes.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "python" / "tests" / "support" / "slurm_cluster.sh"
LIMIT_S = 1200  # a guard against hanging, never a measure
PROGRAMS = ["Rscript", "munged", "slurmctld", "slurmd", "sbatch", "ip", "unshare", "openssl"]
PROGRAMS += ["newuidmap"] if os.geteuid() != 0 else []  # makes them root of their namespace alone
WORKERS = 4

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.skipif(
        None in [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in PROGRAMS],
        reason=f"needs {', '.join(PROGRAMS)}",
    ),
]

TRAIN = """
library(gpukeras)
cluster <- gpu_cluster()
print(cluster)
cat("sees GPU", Sys.getenv("CUDA_VISIBLE_DEVICES"), "\\n")
train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 16, seed = 1)
model <- gpu_mlp(train, seed = 1)
history <- gpu_fit(model, train, epochs = 2, verbose = FALSE)
cat("loss:", format(rev(as.data.frame(history)$loss)[1], digits = 15), "\\n")
"""
LOST = """
library(gpukeras)
cluster <- gpu_cluster()
if (cluster$index == 4) quit(status = 3)
train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 16, seed = 1)
gpu_fit(gpu_mlp(train, seed = 1), train, epochs = 2, verbose = FALSE)
"""


def run_job(folder, code):
    """Submits slurm.sh with a train.R of this code; returns its exit status and all it printed."""
    shutil.copy(ROOT / "inst" / "places" / "slurm.sh", folder)
    (folder / "train.R").write_text(code)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user", "--map-auto"]
    namespaces = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    libraries = os.pathsep.join(filter(None, [str(ROOT / ".rlib"), os.environ.get("R_LIBS")]))
    settings = {"PATH": path, "R_LIBS": libraries, "RETICULATE_PYTHON": sys.executable}
    command = ["unshare", *user, *namespaces, "bash", str(CLUSTER), str(folder), "slurm.sh"]
    result = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "Submitted batch job" in result.stdout, result.stderr + read_logs(folder)
    return result.returncode, (folder / "output").read_text()


def read_logs(folder):
    return "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("slurm*.log")))


def of_each(pattern, said):
    """What each task printed that fits the pattern, by the number that srun writes before it."""
    found = re.findall(rf"^(\d): {pattern}", said, re.MULTILINE)
    return {int(task): text for task, text in found}


def test_four_workers_on_two_computers_train_one_model(tmp_path):
    status, said = run_job(tmp_path, TRAIN)
    assert status == 0, said
    ranks = of_each(r"<gpu_cluster> worker (\d of 4).*, by Slurm", said)
    assert ranks == {task: f"{task + 1} of 4" for task in range(WORKERS)}
    places = of_each(r"worker \d  (train-\d):\d+ \(this session\)", said)
    assert places == {0: "train-1", 1: "train-1", 2: "train-2", 3: "train-2"}
    assert of_each(r"sees GPU (.*?) *$", said) == {0: "0", 1: "1", 2: "0", 3: "1"}
    losses = of_each(r"loss: (\S+)", said)
    assert len(losses) == WORKERS
    assert len(set(losses.values())) == 1


def test_a_lost_worker_ends_the_job_and_is_named(tmp_path):
    status, said = run_job(tmp_path, LOST)
    assert status != 0
    assert "task 3: Exited with exit code 3" in said
    assert of_each(r"! (Worker 4)", said) == dict.fromkeys(range(WORKERS - 1), "Worker 4"), said
