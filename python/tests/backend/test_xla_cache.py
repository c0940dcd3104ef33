"""XLA's programs are kept only where the user says so, apart for each kind of computer."""

import os
import subprocess
import sys

import pytest

from gpukeras.backend import xla_cache


@pytest.mark.parametrize(
    "variables",
    [{}, {"GPUKERAS_XLA_CACHE": ""}, {"GPUKERAS_XLA_CACHE": "/a", "TF_XLA_FLAGS": "--mine"}],
)
def test_nothing_is_kept_unless_asked_for(variables):
    assert xla_cache.plan_cache(variables, "kind") is None


def test_the_folder_is_the_users():
    flags = xla_cache.plan_cache({"GPUKERAS_XLA_CACHE": "/some where"}, "kind")
    assert flags == '--tf_xla_persistent_cache_directory="/some where/kind"'


def test_unlike_computers_have_folders_of_their_own(tmp_path):
    names = set()
    for number, flags in enumerate(["sse avx2", "sse avx2 avx512f", "sse"]):
        file = tmp_path / str(number)
        file.write_text(f"processor: 0\nflags\t: {flags}\n")
        names.add(xla_cache.name_kind("2.21.0", xla_cache.read_cpu(file)))
    assert len(names) == 3
    assert xla_cache.read_cpu(tmp_path / "none")
    assert all(name.startswith("tensorflow-2.21.0-") for name in names)


CODE = """
from gpukeras.backend import runtime
tf = runtime.tensorflow()
print(tf.function(lambda x: tf.sin(x) * 2, jit_compile=True)(tf.ones(3)).shape)
"""


@pytest.mark.tf
def test_a_program_is_kept_there(tmp_path):
    folder = tmp_path / "with space"
    path = os.pathsep.join(each for each in sys.path if each)
    given = {"GPUKERAS_XLA_CACHE": str(folder), "PYTHONPATH": path}
    others = {name: value for name, value in os.environ.items() if name != "TF_XLA_FLAGS"}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", CODE], env={**others, **given}, check=True)
    (kind,) = folder.iterdir()
    assert len([*kind.iterdir()]) == 1


@pytest.mark.parametrize(
    ("mode", "risk"), [(0o755, ""), (0o775, ""), (0o777, "can be written to by all users")]
)
def test_a_folder_in_which_anybody_may_put_programs_is_found(tmp_path, mode, risk):
    tmp_path.chmod(mode)
    assert xla_cache.find_risk(tmp_path) == risk
    assert xla_cache.find_risk(tmp_path / "none") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_found(tmp_path):
    os.chown(tmp_path, 65534, -1)
    assert xla_cache.find_risk(tmp_path) == "belongs to another user"


def test_such_a_folder_is_not_used_and_that_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    monkeypatch.setenv("GPUKERAS_XLA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="XLA_CACHE is not used: cache can be written to by"):
        xla_cache.prepare_cache()
    assert "TF_XLA_FLAGS" not in os.environ
