"""What Python's documentation says that Windows lacks is taken away; this is not Windows itself."""

import pytest
from children import run_script

IMPORT_ALL = """
import asyncio, ctypes, http.server, importlib, multiprocessing, os, pkgutil, signal, ssl
import subprocess, sys, tempfile
import numpy, psutil  # and the libraries before, which know Windows

for name in ("SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP"):
    delattr(signal, name)
for name in ("fork", "geteuid", "getpgid", "getuid", "killpg", "register_at_fork",
             "sched_getaffinity", "setsid", "statvfs", "sysconf"):
    delattr(os, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None

import gpukeras
names = [found.name for found in pkgutil.walk_packages(gpukeras.__path__, "gpukeras.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
answer = {"modules": len(names), "tensorflow": "tensorflow" in sys.modules}
"""


@pytest.mark.slow
def test_all_modules_are_imported_without_what_only_unix_has():
    answer = run_script(IMPORT_ALL)
    assert answer["modules"] > 400
    assert not answer["tensorflow"]
