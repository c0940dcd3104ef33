"""Scripts of inst/places under a real Slurm of two computers, which are two networks of this one.

Nothing is left of it: its processes end with their namespace, its files lie in the test's folder.
Takes four minutes.
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


# Slurm sends its signal to the task once it trains; run again, the task goes on. What it has then
# is compared with what a call gives that nobody ended.
REQUEUED = """
library(gpukeras)
invisible(gpu_setup(seed = 1, deterministic = TRUE))
train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8, seed = 1)
build <- function(rate) gpu_mlp(train, units = 8, learning_rate = rate, seed = 1)
ways <- list(
  list(index = "fits.json", train = function(kept = NULL) {
    fits <- gpu_fit_many(train, build, grid = data.frame(rate = c(0.001, 0.01)), seeds = 2,
      epochs = 2000, checkpoint = kept, verbose = FALSE)
    lapply(seq_len(nrow(as.data.frame(fits))), function(number) fits[[number]]$get_weights())
  }),
  list(index = "study.json", train = function(kept = NULL) {
    found <- gpu_tune(train, build, rate = tune_range(1e-4, 1e-2, log = TRUE), trials = 4,
      min_epochs = 500, epochs = 1500, resamples = 2, folder = kept, seed = 1, verbose = FALSE)
    trace <- as.data.frame(found)
    trace[setdiff(names(trace), "seconds")]
  })
)
task <- Sys.getenv("SLURM_ARRAY_TASK_ID")
way <- ways[[as.integer(task)]]
folder <- paste0("run-", task)
if (!file.exists(folder)) {
  begun <- sprintf("while [ ! -e %s/%s ]; do sleep 0.1; done; sleep 5;", folder, way$index)
  signal <- paste("exec scancel --signal=TERM", Sys.getenv("SLURM_JOB_ID"))
  system(paste("(", begun, signal, ")"), wait = FALSE)
}
kept <- way$train(list(folder = folder, grace_s = 120))
cat(task, "ends in run", Sys.getenv("SLURM_RESTART_COUNT", "0"), "\n")
cat(task, "ends the same:", identical(kept, way$train()), "\n")
"""


def run_job(folder, code, script="slurm.sh", **changes):
    """Submits a script with a train.R of this code; returns its exit status and all it printed.

    Args:
        folder: Where it runs.
        code: The code.
        script: The script's name in inst/places.
        changes: Options of its `#SBATCH` lines, with other values.
    """
    text = (ROOT / "inst" / "places" / script).read_text()
    for option, value in changes.items():
        text, count = re.subn(rf"(?m)^(#SBATCH --{option}=).*$", rf"\g<1>{value}", text)
        assert count == 1, option
    (folder / script).write_text(text)
    (folder / "train.R").write_text(code)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user", "--map-auto"]
    namespaces = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    libraries = os.pathsep.join(filter(None, [str(ROOT / ".rlib"), os.environ.get("R_LIBS")]))
    settings = {"PATH": path, "R_LIBS": libraries, "RETICULATE_PYTHON": sys.executable}
    command = ["unshare", *user, *namespaces, "bash", str(CLUSTER), str(folder), script]
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


def test_many_models_and_a_search_are_put_back_into_the_queue_and_go_on(tmp_path):
    status, said = run_job(tmp_path, REQUEUED, "slurm-requeue.sh", array="1-2")
    assert status == 0, said
    for noun in ("training", "search"):
        assert re.search(rf"asked to end, and its {noun} is saved, .* s after SIGTERM", said), said
    assert said.count("R ends with the exit status 75") == 2
    assert sorted(re.findall(r"^(\d ends in run \d)", said, re.MULTILINE)) == [
        "1 ends in run 1",
        "2 ends in run 1",
    ]
    assert said.count("ends the same: TRUE") == 2, said
