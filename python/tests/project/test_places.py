"""The recipes of inst/places are what their programs read, and what gpu_cluster() takes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from gpukeras.core.preemption import REQUEUE_STATUS
from gpukeras.distributed.cluster_config import read_cluster

ROOT = Path(__file__).parents[3]
PLACES = ROOT / "inst" / "places"


RELEASE = Path("/proc/sys/kernel/osrelease")
SCRIPTS = sorted(path.name for path in PLACES.glob("*.sh"))
needs_r = pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")


def read_job():
    service, job = yaml.safe_load_all((PLACES / "kubernetes.yaml").read_text())
    return service, job, job["spec"]["template"]["spec"]


def test_the_pods_of_kubernetes_have_the_names_of_the_service():
    service, job, pod = read_job()
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
def test_kubernetes_takes_the_service_and_the_job(version):
    for part in read_job()[:2]:
        kubernetes_validate.validate(part, version, strict=True)


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
def test_kubernetes_takes_the_job_that_goes_on_after_an_eviction(version):
    job = yaml.safe_load((PLACES / "kubernetes-requeue.yaml").read_text())
    kubernetes_validate.validate(job, version, strict=True)
    pod, rules = job["spec"]["template"]["spec"], job["spec"]["podFailurePolicy"]["rules"]
    assert pod["restartPolicy"] == "Never"  # the policy needs it
    (status,) = [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]
    assert status["containerName"] in [one["name"] for one in pod["containers"]]
    assert REQUEUE_STATUS in status["values"]


def test_the_script_of_slurm_puts_a_job_back_by_its_exit_status(tmp_path):
    log = tmp_path / "log"
    for name, code in (("srun", 'exit "$STATUS"'), ("scontrol", f'echo "$@" >> {log}')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "7"}
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
    for status, more in ((0, {}), (1, array), (REQUEUE_STATUS, {}), (143, array)):
        env = {**job, **more, "STATUS": str(status), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        script = ["bash", str(PLACES / "slurm-requeue.sh")]
        assert subprocess.run(script, env=env, check=False).returncode == status
    assert log.read_text() == "requeue 7\nrequeue 5_2\n"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("completionMode", 1, "1 is not of type 'string'"),
        ("completionmode", "Indexed", "'completionmode' was unexpected"),
        ("completions", "2", "'2' is not of type 'integer'"),
    ],
)
def test_kubernetes_refuses_a_broken_job(name, value, said):
    job = read_job()[1]
    job["spec"][name] = value
    with pytest.raises(kubernetes_validate.ValidationError, match=said):
        kubernetes_validate.validate(job, "1.27", strict=True)


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


def test_the_script_of_slurm_starts_by_srun():  # test_places_slurm.py submits it at night
    lines = (PLACES / "slurm.sh").read_text()
    assert re.search(r"^srun .*Rscript train\.R$", lines.replace("\\\n", ""), re.MULTILINE)


def lint(program, text):
    """What a linter out of requirements-dev.txt says of a file's text."""
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    found = shutil.which(program, path=folders)
    assert found, f"{program} is not installed"
    child = subprocess.run([found, "-"], input=text, capture_output=True, text=True, check=False)
    return child.stdout + child.stderr


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.serve"])
def test_hadolint_has_nothing_to_say_of_images(name):
    recipe = (PLACES / name).read_text()
    assert lint("hadolint", recipe) == ""
    assert "DL3002" in lint("hadolint", re.sub("USER .*", "USER root", recipe))
    assert "DL3025" in lint("hadolint", re.sub(r"CMD \[.*\]", "CMD make demo", recipe))


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.serve"])
def test_images_copy_what_is_there_and_do_not_run_as_root(name):
    lines = (PLACES / name).read_text().replace("\\\n", "").splitlines()
    steps = [line.split() for line in lines if line and not line.startswith(("#", " "))]
    assert [step[0] for step in steps][:2] == ["ARG", "FROM"]
    copied = [source for step in steps if step[0] == "COPY" for source in step[1:-1]]
    assert copied
    assert all((ROOT / source).exists() for source in copied)
    assert int(steps[[step[0] for step in steps].index("USER")][1]) > 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_read_by_a_shell(name):
    script = str(PLACES / name)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert lint("shellcheck", Path(script).read_text()) == ""
    assert "SC2086" in lint("shellcheck", Path(script).read_text() + "\necho $HOME/*$1\n")


def run_script(name, folder):
    script = [str(PLACES / name)]
    return subprocess.run(
        ["bash", *script], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(
    not RELEASE.exists() or "microsoft" in RELEASE.read_text().lower(),
    reason="this is WSL, where the script would install, or no Linux",
)
def test_the_script_of_wsl_installs_nothing_elsewhere(tmp_path):
    assert run_script("wsl2.sh", ROOT).stderr == "This computer does not run under WSL.\n"
    outside = run_script("wsl2.sh", tmp_path)
    assert (outside.returncode, outside.stderr.split()[0]) == (1, "Run")


def test_the_script_of_workbench_wants_the_sources(tmp_path):
    found = run_script("workbench.sh", tmp_path)
    expected = "Run it in the folder of gpukeras' sources.\n"
    assert (found.returncode, found.stderr) == (1, expected)


@needs_r
def test_code_of_r_is_parsed_and_wants_the_package_first(tmp_path):
    script = str(PLACES / "colab.R")
    found = subprocess.run(["Rscript", script], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "Set `package` to the path" in found.stderr
    # What -e runs within the scripts of the shell, without what the shell puts in.
    for code in re.findall(r"-e '([^']+)'", "".join((PLACES / s).read_text() for s in SCRIPTS)):
        read = subprocess.run(["Rscript", "-e", f"parse(text = {code!r})"], check=False)
        assert read.returncode == 0


def read_definition():
    """The header of Apptainer's definition, and its sections by name."""
    header, *parts = re.split(r"^%", (PLACES / "gpukeras.def").read_text(), flags=re.MULTILINE)
    sections = dict(part.partition("\n")[::2] for part in parts)
    return dict(line.split(": ") for line in header.splitlines() if line), sections


def test_the_definition_of_apptainer_has_its_sections_and_the_steps_of_the_dockerfile():
    header, sections = read_definition()
    assert set(header) == {"Bootstrap", "From"}
    known = {"help", "arguments", "files", "post", "environment", "runscript", "test"}
    assert set(sections) == known
    for line in sections["files"].split("\n"):
        source, _, target = line.strip().partition(" ")
        assert (ROOT / source).exists()
        assert not source or target == f"/opt/gpukeras/{source}"
    recipe = (PLACES / "Dockerfile").read_text()
    assert f"BASE=docker.io/library/{header['From']}" in recipe
    for step in ("make setup-demo install", "--no-install-recommends ca-certificates make"):
        assert step in sections["post"]
        assert step in recipe
    # Arguments in braces are declared.
    declared = dict(line.split("=") for line in sections["arguments"].split())
    assert set(re.findall(r"{{ (\w+) }}", sections["post"])) == set(declared)


@pytest.mark.parametrize("section", ["post", "environment", "runscript", "test"])
def test_the_shell_code_of_apptainer_is_read_by_a_shell(section):
    code = re.sub(r"{{ (\w+) }}", "no", read_definition()[1][section])
    assert subprocess.run(["sh", "-n"], input=code, text=True, check=False).returncode == 0


def test_all_places_are_listed():
    table = re.findall(r"^\| `([^`]+)` \|", (PLACES / "README.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(
        path.name for path in PLACES.iterdir() if path.name != "README.md"
    )
