"""The recipes of inst/places are what their programs read, and what gpu_cluster() takes."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gpukeras.distributed.cluster_config import read_cluster

ROOT = Path(__file__).parents[3]
PLACES = ROOT / "inst" / "places"


def read_job():
    service, job = yaml.safe_load_all((PLACES / "kubernetes.yaml").read_text())
    return service, job, job["spec"]["template"]["spec"]


def test_the_pods_of_kubernetes_have_the_names_of_the_service():
    service, job, pod = read_job()
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert (job["kind"], job["spec"]["completionMode"]) == ("Job", "Indexed")
    assert job["spec"]["completions"] == job["spec"]["parallelism"]


@pytest.mark.parametrize("index", [0, 1])
def test_each_pod_of_kubernetes_is_a_worker_of_the_cluster(index):
    service, job, pod = read_job()
    (container,) = pod["containers"]
    values = {one["name"]: one.get("value", "") for one in container["env"]}
    config = values["TF_CONFIG"].replace("$(INDEX)", str(index))  # as Kubernetes expands it
    spec = read_cluster({}, {"TF_CONFIG": config, "GPUKERAS_SECRET": "a" * 32})
    names = (job["metadata"]["name"], service["metadata"]["name"])
    expected = [f"{names[0]}-{k}.{names[1]}:2222" for k in range(job["spec"]["completions"])]
    assert (list(spec.workers), spec.index) == (expected, index)
    control = int(spec.control.rpartition(":")[2])
    assert {one["containerPort"] for one in container["ports"]} == {2222, control}


def test_the_script_of_slurm_is_read_by_a_shell_and_starts_by_srun():
    script = PLACES / "slurm.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    lines = script.read_text()
    assert re.search(r"^srun .*Rscript train\.R$", lines.replace("\\\n", ""), re.MULTILINE)
    assert len(re.findall(r"^#SBATCH --[a-z-]+=?", lines, re.MULTILINE)) == 7


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.serve"])
def test_images_copy_what_is_there_and_do_not_run_as_root(name):
    lines = (PLACES / name).read_text().replace("\\\n", "").splitlines()
    steps = [line.split() for line in lines if line and not line.startswith(("#", " "))]
    assert [step[0] for step in steps][:2] == ["ARG", "FROM"]
    copied = [source for step in steps if step[0] == "COPY" for source in step[1:-1]]
    assert copied
    assert all((ROOT / source).exists() for source in copied)
    assert steps[[step[0] for step in steps].index("USER")][1] != "root"
