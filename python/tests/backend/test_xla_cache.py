"""XLA's programs are kept in the user's folder for caches, apart for each kind of computer."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import PATHS

from gpukeras.backend import xla_cache, xla_cache_files

HOME = Path("/home/me")


@pytest.mark.parametrize(
    ("variables", "system", "folder"),
    [
        ({}, "linux", "/home/me/.cache/R/gpukeras/xla"),
        ({"GPUKERAS_XLA_CACHE": ""}, "linux", "/home/me/.cache/R/gpukeras/xla"),
        ({}, "darwin", "/home/me/Library/Caches/org.R-project.R/R/gpukeras/xla"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local/R/cache/R/gpukeras/xla"),
        ({"XDG_CACHE_HOME": "/x"}, "darwin", "/x/R/gpukeras/xla"),
        ({"XDG_CACHE_HOME": "/x", "R_USER_CACHE_DIR": "/r"}, "linux", "/r/R/gpukeras/xla"),
        ({"GPUKERAS_XLA_CACHE": "/some where", "XDG_CACHE_HOME": "/x"}, "linux", "/some where"),
        ({"GPUKERAS_XLA_CACHE": "off"}, "linux", None),
        ({"GPUKERAS_XLA_CACHE": "OFF"}, "linux", None),
    ],
)
def test_the_folder_is_named_or_that_of_r(variables, system, folder):
    found = xla_cache.find_folder(variables, system, HOME)
    assert found == (None if folder is None else Path(folder))


def test_flags_name_the_folder_and_the_devices():
    flags = xla_cache.write_flags(Path("/some where/kind"), cpu_only=False)
    assert flags == '--tf_xla_persistent_cache_directory="/some where/kind"'
    assert xla_cache.write_flags(Path("/a"), cpu_only=True).endswith(" " + xla_cache.CPU_FLAG)


def test_unlike_computers_have_folders_of_their_own(tmp_path):
    names = set()
    for number, flags in enumerate(["sse avx2", "sse avx2 avx512f", "sse"]):
        file = tmp_path / str(number)
        file.write_text(f"processor: 0\nflags\t: {flags}\n")
        names.add(xla_cache.name_kind("jax-0.7.1", xla_cache.read_cpu(file)))
    names.add(xla_cache.name_kind("jax-0.7.1", xla_cache.read_cpu(tmp_path / "0"), "a GPU"))
    assert len(names) == 4
    assert xla_cache.read_cpu(tmp_path / "none")
    assert all(name.startswith("jax-0.7.1-") for name in names)


def test_gpus_are_told_apart_by_model_and_driver(tmp_path):
    assert xla_cache.read_gpus(tmp_path) == set()
    (tmp_path / "version").write_text("NVRM version: 535.54\n")
    for place, model in enumerate(["Tesla T4", "Tesla T4", "NVIDIA A100"]):
        folder = tmp_path / "gpus" / str(place)
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t {model}\nIRQ: {place}\n")
    found = xla_cache.read_gpus(tmp_path)
    assert len(found) == 2
    assert all("535.54" in each for each in found)


CODE = """
import os
from gpukeras.backend import cpp_log, runtime
tf = runtime.tensorflow()
def run():
    with cpp_log.muted_cpp_log():
        found = tf.function(lambda x: tf.sin(x) * 2, jit_compile=True)(tf.ones(3))
        # In one write: between print()'s two, of its text and its end, another process may write.
        os.write(1, f"{found.shape}\\n".encode())
"""
# Two processes at once, then a third. TensorFlow starts in each of them, and is imported once.
THREE = """
import warnings
warnings.simplefilter("ignore")  # of forks in a process with threads, from Python 3.12 on
def fork():
    if os.fork() == 0:
        run()
        os._exit(0)
fork()
fork()
ended = [os.wait()[1], os.wait()[1]]
fork()
print(ended + [os.wait()[1]])
"""

JAX_CODE = """
from gpukeras.backend.jax_module import jax
found = []
jax().monitoring.register_event_listener(lambda name, **_: found.append(name.split("/")[-1]))
print(jax().jit(lambda x: jax().numpy.sin(x) * 2)(jax().numpy.ones(3)).shape)
folder = jax().config.jax_compilation_cache_dir
print(found.count("cache_hits"), found.count("cache_misses"), folder)
"""
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def start(code, **variables):
    left_out = ("TF_XLA_FLAGS", "GPUKERAS_XLA_CACHE", "R_USER_CACHE_DIR")
    others = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**others, "PYTHONPATH": PATHS, "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.tf
def test_two_processes_at_once_and_a_third_share_a_program_in_silence(tmp_path):
    folder = tmp_path / "with space"
    output, errors = start(CODE + THREE, GPUKERAS_XLA_CACHE=str(folder)).communicate()
    assert (output, errors) == ("(3,)\n" * 3 + "[0, 0, 0]\n", "")
    (kind,) = folder.iterdir()
    (program,) = kind.iterdir()
    assert xla_cache_files.is_whole(program)
    assert (folder.stat().st_mode | kind.stat().st_mode) & 0o077 == 0


@pytest.mark.slow
@needs_jax
def test_jax_finds_its_programs_again_and_replaces_a_damaged_one(tmp_path):
    def run():
        output, errors = start(JAX_CODE, GPUKERAS_XLA_CACHE=str(tmp_path / "a b")).communicate()
        assert errors == ""
        shape, counts = output.splitlines()
        assert shape == "(3,)"
        return tuple(map(int, counts.split()[:2]))

    hits, compiled = run()
    assert hits == 0
    assert compiled > 0
    assert run() == (compiled, 0)
    (kind,) = (tmp_path / "a b").iterdir()
    assert kind.name.startswith("jax-")
    assert kind.stat().st_mode & 0o077 == 0
    program = next(kind.glob("jit__lambda*"))
    program.chmod(0o600)
    program.write_bytes(program.read_bytes()[:-1])
    assert run() == (compiled - 1, 1)
    assert run() == (compiled, 0)


@pytest.mark.varies
@needs_jax
@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"GPUKERAS_XLA_CACHE": "off"}, "None"),
        ({"JAX_COMPILATION_CACHE_DIR": "{tmp}/own"}, "{tmp}/own"),
    ],
)
def test_jax_keeps_no_programs_if_asked_or_where_the_user_says(tmp_path, variables, folder):
    variables = {name: value.format(tmp=tmp_path) for name, value in variables.items()}
    output, errors = start(JAX_CODE, **variables).communicate()
    assert errors == ""
    assert output.split()[-1] == folder.format(tmp=tmp_path)


@pytest.mark.slow
@pytest.mark.tf
def test_where_no_folder_can_be_made_tensorflow_compiles_in_silence(tmp_path):
    (tmp_path / "file").touch()
    output, errors = start(CODE + "run()", XDG_CACHE_HOME=str(tmp_path / "file")).communicate()
    assert (output, errors) == ("(3,)\n", "")


def test_such_a_folder_is_not_used_and_that_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    monkeypatch.setenv("GPUKERAS_XLA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="XLA_CACHE is not used: cache can be written to by"):
        xla_cache.prepare_cache()
    assert "TF_XLA_FLAGS" not in os.environ


def test_flags_of_the_users_own_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--mine")
    monkeypatch.setenv("GPUKERAS_XLA_CACHE", str(tmp_path / "cache"))
    xla_cache.prepare_cache()
    assert os.environ["TF_XLA_FLAGS"] == "--mine"
    assert not (tmp_path / "cache").exists()
