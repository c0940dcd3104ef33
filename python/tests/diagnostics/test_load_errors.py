"""Imports that fail for real: the loader of this computer reads libraries with renamed versions."""

import ctypes
import json
import os
import platform
import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import PATHS, run_python
from recorded import UNLISTED, change, judge

from gpukeras.diagnostics.child_probes import read_import_alone, read_listings
from gpukeras.diagnostics.collect import may_die
from gpukeras.diagnostics.load_errors import find_mapped, find_newest, parse_load_error
from gpukeras.system.facts import parse_numbers

on_linux = pytest.mark.skipif(platform.system() != "Linux", reason="this is Linux' loader")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
MAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 131 /usr/lib/R/bin/exec/R
7f1fd2a00000-7f1fd2a9a000 r--p 00000000 08:01 393 /usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30
7f1fd2a9a000-7f1fd2ba4000 r-xp 0009a000 08:01 393 /usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30
7f1fd3000000-7f1fd3028000 r--p 00000000 08:01 412 /usr/lib/x86_64-linux-gnu/libc.so.6
7f1fd4000000-7f1fd4028000 rw-p 00000000 00:00 0
"""


@pytest.mark.parametrize(
    ("text", "kind", "version"),
    [
        (
            "/l/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by a.so)",
            "c++",
            "32",
        ),
        ("Original error was: /l/libstdc++.so.6: version `CXXABI_1.3.15' not found", "c++", "15"),
        ("/l/libc.so.6: version `GLIBC_2.38' not found (required by /e/a.so)", "c", "GLIBC_2.38"),
        ("/l/libcrypto.so.3: version `OPENSSL_3.3.0' not found (required by x)", "ssl", "3.3.0"),
        ("/l/libcudart.so: version `libcudart.so.12' not found (required by x)", "damaged", "12"),
        ("libssl.so.1.1: cannot open shared object file: No such file or directory", "ssl", ""),
        ("TensorFlow cannot be imported: libx.so.1: cannot open shared object file", "absent", ""),
        ("dlopen(/e/a.so, 0x2): Library not loaded: @rpath/libz.1.dylib", "absent", ""),
        ("DLL load failed while importing _x: The specified module could not", "absent", ""),
        ("/a path/a.so: invalid ELF header", "damaged", ""),
        ("/e/a.so: undefined symbol: _ZN4absl", "damaged", ""),
        ("No module named '_ssl'", "ssl", ""),
        ("No module named 'tensorflow'", "missing", ""),
        ("No module named 'tensorflow.python'", "other", ""),
        ("No module named 'wrapt'", "other", ""),
        ("TypeError: Descriptors cannot be created directly.", "other", ""),
    ],
)
def test_what_the_loader_says_is_told_apart(text, kind, version):
    found = parse_load_error(text, "tensorflow")
    assert found.kind == kind
    assert found.version.endswith(version) if version else not found.version


def test_the_file_that_is_mapped_is_found_behind_its_link():
    loaded = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30"
    assert find_mapped(MAPS, "/opt/lib/libstdc++.so.6") == loaded
    assert find_mapped(MAPS, "libc.so.6") == "/usr/lib/x86_64-linux-gnu/libc.so.6"
    assert find_mapped(MAPS, "libssl.so.3") == ""
    assert find_mapped(MAPS, "") == ""


def test_versions_are_compared_as_numbers_within_their_family():
    content = b"\0GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0CXXABI_1.3.13\0CXXABI_TM_1\0GLIBCXX_3.4.4\0"
    assert find_newest(content, "GLIBCXX_3.4.32") == "GLIBCXX_3.4.30"
    assert find_newest(content, "CXXABI_1.3.15") == "CXXABI_1.3.13"
    assert find_newest(b"", "GLIBC_2.38") == ""


# Broken libraries, and a real process ------------------------------------------------------------

LOAD = """
import importlib, json, sys
from gpukeras.diagnostics.load_errors import read_load_error
answer = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        answer[name] = read_load_error(str(error), name)
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What a process says that imports copies of a module of Python's, each broken in one way."""
    folder = tmp_path_factory.mktemp("broken")
    whole = Path(find_spec("_ssl").origin).read_bytes()
    broken = {
        "short": b"",
        "garbage": b"no library" * 100,
        "absent": whole.replace(b"libssl.so", b"libnon.so"),
        "openssl": re.sub(rb"libssl\.so\.\d", b"libssl.so.x", whole),
        "glibc": re.sub(rb"\0GLIBC_2\.", b"\0GLIBC_9.", whole),
        "symbol": whole.replace(b"\0PyErr_SetString\0", b"\0PyErr_NonString\0"),
        "no_such_module": None,
    }
    for name, content in broken.items():
        if content is not None:
            (folder / f"{name}{SUFFIX}").write_bytes(content)
    paths = os.pathsep.join((PATHS, str(folder)))
    child = run_python("-c", LOAD, *broken, PYTHONPATH=paths)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@on_linux
@pytest.mark.parametrize(
    ("name", "cause", "evidence"),
    [
        ("short", "C26", "file too short"),
        ("garbage", "C26", "invalid ELF header"),
        ("absent", "C25", "libnon.so"),
        ("openssl", "C24", "libssl.so.x"),
        ("glibc", "C23", "this process has /"),
        ("symbol", "C26", "undefined symbol"),
        ("no_such_module", None, ""),
    ],
)
def test_a_real_loaders_error_is_a_cause(loaded, name, cause, evidence):
    facts = change(UNLISTED, {"tensorflow": {"imported": False, "physical_gpus": None}})
    diagnosis = judge({**facts, "import_error": loaded[name]})
    assert diagnosis.cause_id == cause
    assert evidence in " ".join(diagnosis.evidence)
    assert "pip install" not in diagnosis.fix


CHECK = """
import json
from gpukeras.backend import runtime
from gpukeras.core.errors import RuntimeMissingError
from gpukeras.diagnostics.check import check
try:
    runtime.tensorflow()
except RuntimeMissingError as error:
    said = [error.message, error.hint]
found = check()
shown = [vars(one) for one in found.findings if one.id == "C22"]
print(json.dumps([said, shown, found.facts["import_error"]]))
"""


def age_library(folder):
    """Copies libstdc++; the newest version that TensorFlow needs and later ones get other names."""
    ctypes.CDLL("libstdc++.so.6")
    library = find_mapped(Path("/proc/self/maps").read_text(), "libstdc++.so.6")
    tensorflow = Path(find_spec("tensorflow").origin).parent
    needs = (tensorflow / "libtensorflow_framework.so.2").read_bytes()
    version = find_newest(needs, "GLIBCXX_3")
    oldest = parse_numbers(version.removeprefix("GLIBCXX_"))

    def rename(match):
        aged = parse_numbers(match[1].decode()) >= oldest
        return match[0].replace(b"GLIBCXX_3", b"GLIBCXX_X") if aged else match[0]

    renamed = re.sub(rb"GLIBCXX_(3[.\d]+)(?=\0)", rename, Path(library).read_bytes())
    (folder / "libstdc++.so.6").write_bytes(renamed)
    return version


@on_linux
def test_an_older_cxx_library_in_this_process_is_named_with_the_newer_one(tmp_path):
    version = age_library(tmp_path)
    child = run_python("-c", CHECK, LD_LIBRARY_PATH=str(tmp_path), KERAS_BACKEND="tensorflow")
    assert child.returncode == 0, child.stderr
    (message, hint), (cause,), error = json.loads(child.stdout.splitlines()[-1])
    assert f"version `{version}' not found" in message
    assert "gpu_check() says why" in hint
    assert "install" not in hint.removeprefix("It is installed")
    assert cause["status"] == "problem"
    assert f"this process has {tmp_path}/libstdc++.so.6" in cause["evidence"]
    assert error["newest"] not in ("", version)
    assert f"LD_PRELOAD={error['newer']} R" in cause["fix"]
    assert version.encode() in Path(error["newer"]).read_bytes()


ON_JAX = """
import json
from gpukeras.diagnostics import collect
from gpukeras.system.facts import parse_facts
facts = {"keras": {"backend": "jax"}, "unread": {}, "listings": {"as it is": {"ok": False}}}
skipped = collect.explain_no_start(parse_facts(facts))
collect.read_session(facts, {})
print(json.dumps([skipped, facts]))
"""


@on_linux
def test_on_jax_an_import_that_failed_in_a_child_is_tried_in_this_process(tmp_path):
    (tmp_path / f"jax{SUFFIX}").write_bytes(b"")
    paths = os.pathsep.join((str(tmp_path), PATHS))
    child = run_python("-c", ON_JAX, PYTHONPATH=paths, KERAS_BACKEND="jax")
    assert child.returncode == 0, child.stderr
    skipped, facts = json.loads(child.stdout.splitlines()[-1])
    assert skipped == ""
    assert facts["jax"]["error"].startswith("JAX cannot be imported")
    assert judge(facts).cause_id == "C26"


ILLEGAL = """
import ctypes, mmap
code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write({code!r})
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
UNKNOWN = {"x86_64": b"\x0f\x0b", "aarch64": bytes(4)}  # ud2, udf


@on_linux
@pytest.mark.skipif(platform.machine() not in UNKNOWN, reason="another processor")
def test_an_instruction_that_the_processor_does_not_know_is_a_cause(tmp_path):
    source = ILLEGAL.format(code=UNKNOWN[platform.machine()])
    (tmp_path / "tensorflow.py").write_text(source)
    facts = {"python": {"executable": sys.executable}, "build": None, "packages": {}}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "KERAS_BACKEND": "tensorflow"}
    read_listings(facts, environment)
    assert facts["listings"]["as it is"]["error"] == "killed by SIGILL"
    assert judge(facts).cause_id == "C27"


@on_linux
@pytest.mark.parametrize(("name", "cause"), [("SIGILL", "C27"), ("SIGSEGV", "C28")])
def test_an_import_that_ends_its_process_is_a_problem_also_without_a_gpu(tmp_path, name, cause):
    source = f"import os, signal\nos.kill(os.getpid(), signal.{name})"
    (tmp_path / "tensorflow.py").write_text(source)
    facts = {"python": {"executable": sys.executable}, "hardware": {"nvidia_gpus": []}}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "KERAS_BACKEND": "tensorflow"}
    read_import_alone(facts, environment)
    assert facts["import_alone"] == f"killed by {name}"
    found = {finding.id: finding for finding in judge(facts).findings}
    assert found[cause].status == "problem"
    assert f"killed by {name}" in found[cause].evidence


def test_an_import_that_went_well_is_not_tried_again():
    facts = {"tensorflow": {"imported": True}}
    read_import_alone(facts, {})
    assert "import_alone" not in facts


@pytest.mark.parametrize(
    ("flags", "error", "may"),
    [
        ("flags\t\t: fpu sse2 avx avx2\n", "", False),
        ("flags\t\t: fpu sse2 avx2x\n", "", True),
        ("flags\t\t: fpu avx\n", "killed by SIGSEGV", True),
        ("Features\t: fp asimd\n", "did not end within 60 s", False),
    ],
)
def test_an_import_is_tried_alone_where_it_may_end_its_process(tmp_path, flags, error, may):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(flags)
    assert may_die({"listings": {"as it is": {"error": error}}}, tmp_path) is may
