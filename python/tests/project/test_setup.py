"""tools/setup.sh as a real script, on a computer of stand-ins.

apt-get, R and .venv's Python are small programs in the tests' own folder: what is installed is a
list of names in a file, and what Debian refuses is another.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    not (ROOT / "tools" / "setup.sh").exists() or shutil.which("sh") is None,
    reason="there is no shell, or the tests lie apart from the tools",
)
PROGRAMS = {
    # Refuses the names in `refused`, adds the others to `installed`; a program becomes a file.
    "apt-get": """
        echo "$@" >>"$STATE/calls"
        [ "$1" = install ] || exit 0
        for name in "$@"; do
            case $name in install | -*) continue ;; esac
            if grep -qx "$name" "$STATE/refused"; then exit 100; fi
        done
        for name in "$@"; do
            case $name in
                install | -*) ;;
                r-cran-*) echo "${name#r-cran-}" >>"$STATE/installed" ;;
                *) ln -sf /bin/true "$STATE/bin/$name" ;;
            esac
        done
    """,
    # Prints the packages that are not in `installed`, as the script asks R for them.
    "Rscript": """
        shift 3
        for name in "$@"; do
            low=$(echo "$name" | tr '[:upper:]' '[:lower:]')
            grep -qx "$low" "$STATE/installed" || printf '%s ' "$name"
        done
    """,
    "apt-cache": "",
    "id": 'echo "$WHO"',
}
REQUIRED = [
    "reticulate",
    "callr",
    "cli",
    "rlang",
    "jsonlite",
    "testthat",
    "withr",
    "knitr",
    "rmarkdown",
]
USEFUL = [
    "ggplot2",
    "bit64",
    "future",
    "generics",
    "mass",
    "matrix",
    "nnet",
    "png",
    "recipes",
    "rsample",
    "rsqlite",
    "survival",
    "dbplyr",
    "rpostgresql",
]


class Computer:
    """A folder with the script, a .venv that is complete, and nothing on its path but stand-ins."""

    def __init__(self, folder, installed=(), refused=(), root=True):
        self.folder, self.state = folder, folder / "state"
        self.root = root
        (self.state / "bin").mkdir(parents=True)
        for name in ("sh", "cat", "cp", "cmp", "grep", "sed", "tr", "ls", "mv", "rm", "mkdir",
                     "mktemp", "tail", "dirname", "ln"):  # fmt: skip
            (self.state / "bin" / name).symlink_to(shutil.which(name))
        for name, lines in PROGRAMS.items():
            self.add_program(self.state / "bin" / name, lines)
        (self.state / "installed").write_text("".join(f"{name}\n" for name in installed))
        (self.state / "refused").write_text("".join(f"{name}\n" for name in refused))
        (self.state / "calls").touch()
        for name in ("tools", "python"):
            (folder / name).mkdir()
        requirements = ("python/requirements.txt", "python/requirements-dev.txt")
        for name in ("tools/setup.sh", "tools/speak.sh", *requirements):
            shutil.copy(ROOT / name, folder / name)
        (folder / ".venv/bin").mkdir(parents=True)
        self.add_program(folder / ".venv/bin/python", "")

    @staticmethod
    def add_program(path, lines):
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)

    def set_up(self, target="check"):
        """What the script says, its exit status, and what apt-get was asked meanwhile."""
        before = len((self.state / "calls").read_text().splitlines())
        environment = {"PATH": str(self.state / "bin"), "STATE": str(self.state)}
        environment |= {"WHO": "0" if self.root else "1000", "TMPDIR": os.environ.get("TMPDIR", "")}
        child = subprocess.run(
            ["sh", "tools/setup.sh", target],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        calls = (self.state / "calls").read_text().splitlines()[before:]
        return child.stdout + child.stderr, child.returncode, calls


@pytest.fixture
def make(tmp_path):
    return lambda **options: Computer(tmp_path, **options)


def install_of(calls):
    return [call.split()[-1] for call in calls if call.startswith("install")]


def test_what_cannot_be_installed_and_is_only_useful_is_left_out_with_a_sentence(make):
    computer = make(installed=[*REQUIRED, *USEFUL], refused=["r-cran-v8"])
    computer.add_program(computer.state / "bin/pandoc", "")
    said, status, calls = computer.set_up()
    assert status == 0, said
    assert "goes on without r-cran-v8: formulas in help pages are not rendered." in said
    assert install_of(calls) == ["r-cran-v8", "tidy"]  # one by one: tidy came all the same
    assert "installing from Debian (2 of 2 that are optional): tidy ...\n" in said
    assert "without tidy" not in said


def test_what_was_refused_once_is_not_asked_for_again_until_the_stamp_is_gone(make):
    computer = make(installed=[*REQUIRED, *USEFUL], refused=["r-cran-v8", "tidy"])
    computer.add_program(computer.state / "bin/pandoc", "")
    first, _, calls = computer.set_up()
    assert install_of(calls) == ["r-cran-v8", "tidy"]
    again, status, calls = computer.set_up()
    assert (status, calls) == (0, [])  # no word to apt-get, not even for its list
    assert "goes on without tidy: the HTML of the help pages is not validated." in again
    shutil.rmtree(computer.folder / ".rlib")  # as make clean does
    assert install_of(computer.set_up()[2]) == ["r-cran-v8", "tidy"]


def test_with_nothing_missing_nothing_is_said_or_asked(make):
    computer = make(installed=[*REQUIRED, *USEFUL, "v8"])
    for program in ("pandoc", "tidy"):
        computer.add_program(computer.state / "bin" / program, "")
    computer.set_up()
    assert computer.set_up() == ("", 0, [])


def test_what_is_required_and_cannot_be_installed_stops(make):
    computer = make(installed=REQUIRED[1:], refused=["r-cran-reticulate"])
    said, status, calls = computer.set_up()
    assert status == 1
    assert "installing from Debian (2, some minutes): pandoc r-cran-reticulate ...\n" in said
    assert "failed; the lines above say why" in said
    assert len(install_of(calls)) == 1  # nothing useful is tried before what is required


def test_who_may_not_install_goes_on_without_what_is_useful_and_stops_without_the_rest(make):
    computer = make(installed=[*REQUIRED, *USEFUL], root=False)
    said, status, calls = computer.set_up()
    assert (status, calls) == (1, [])
    assert said == "gpukeras setup: programs missing: pandoc.\n"
    computer.add_program(computer.state / "bin/pandoc", "")
    said, status, calls = computer.set_up()
    assert (status, calls) == (0, [])
    assert "goes on without tidy" in said
    assert not (computer.folder / ".rlib").exists()


@pytest.mark.parametrize("target", ["test", "test-nightly", "test-r", "coverage", "doc"])
def test_no_target_needs_a_browser(make, target):
    extra = ["covr", "roxygen2"]
    computer = make(installed=[*REQUIRED, *USEFUL, *extra], refused=["chromium"])
    for program in ("pandoc", "cc"):
        computer.add_program(computer.state / "bin" / program, "")
    said, status, _ = computer.set_up(target)
    assert status == 0, said
    assert "goes on without chromium" in said


def read_until(terminal, expected):
    said = ""
    while expected not in said:
        said += os.read(terminal, 1000).decode()
    return said


def test_a_terminal_shows_how_far_pip_is(tmp_path):
    speak, ours = ROOT / "tools" / "speak.sh", os.openpty()
    site = tmp_path / ".venv/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    pip = """
        echo "Collecting keras"; echo "  Downloading keras-3.12.whl (1.5 MB)"
        while ! [ -e seen ]; do sleep 0.1; done
        echo "Installing collected packages: keras, numpy, jax"
        sleep 0.1; mkdir .venv/lib/python3.11/site-packages/numpy-2.dist-info
        while ! [ -e seen-too ]; do sleep 0.1; done
        echo "the last words"; exit 1
    """
    child = subprocess.Popen(
        ["sh", "-c", f'speaker=test; . {speak}; quietly sh -c "$PIP"'],
        cwd=tmp_path,
        env={**os.environ, "PIP": pip, "TERM": "xterm"},
        stdout=ours[1],
        stderr=ours[1],
    )
    terminal = ours[0]
    read_until(terminal, "s: 1 packages found:   Downloading keras-3.12.whl (1.5 MB)")
    (tmp_path / "seen").touch()
    read_until(terminal, "s: installing packages: 1 of 3")
    (tmp_path / "seen-too").touch()
    said = read_until(terminal, "'sh' failed; the lines above say why.")
    assert "the last words" in said
    assert child.wait(60) == 1
