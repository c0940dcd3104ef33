"""What an interpreter lacks of a list of requirements, and the table of versions known to work."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpukeras
from gpukeras.diagnostics.rules import session
from gpukeras.distributed import keras_internals
from gpukeras.system import facts, requirements

CORE = Path(gpukeras.__file__).parent
TABLE = json.loads((CORE / "system/known_good.json").read_text())
REPOSITORY = CORE.parents[2]
GPU, CPU = "tensorflow[and-cuda]>=2.21,<2.22", "tensorflow-cpu>=2.21,<2.22"
CUDA = {"nvidia-cudnn-cu12": "9.10.2.21"}


@pytest.mark.parametrize(
    ("text", "name", "extra", "bounds"),
    [
        ("keras", "keras", "", ()),
        ("Keras >= 3.12, < 4", "keras", "", ((">=", "3.12"), ("<", "4"))),
        ("tensorflow[and-cuda]==2.21.*", "tensorflow", "and-cuda", (("==", "2.21.*"),)),
        ("nvidia-ml-py>=12,<14", "nvidia-ml-py", "", ((">=", "12"), ("<", "14"))),
        ("keras ~= 3.12", "keras", "", (("~=", "3.12"),)),
        ("numpy!=2.0.0", "numpy", "", (("!=", "2.0.0"),)),
    ],
)
def test_requirements_are_parsed(text, name, extra, bounds):
    found = requirements.parse_requirement(text)
    assert (found.name, found.extra, found.bounds) == (name, extra, bounds)


@pytest.mark.parametrize("text", ["", "keras >", "keras = 3", "-r file", "a b", "keras<4; rm"])
def test_what_is_no_requirement_is_refused(text):
    with pytest.raises(ValueError, match="no requirement"):
        requirements.parse_requirement(text)


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("2.21.0", "x>=2.21,<2.22", True),
        ("2.22.0rc0", "x>=2.21,<2.22", False),
        ("2.9", "x>=2.21", False),
        ("3", "x>=3.0", True),
        ("3.0.0", "x==3", True),
        ("2.21.7", "x==2.21.*", True),
        ("2.2.1", "x==2.21.*", False),
        ("2.0.0", "x!=2.0.0", False),
        ("3.15.1", "x~=3.12", True),
        ("3.11", "x~=3.12", False),
        ("4.0", "x~=3.12", False),
        ("4.0", "x<=4", True),
        ("4.0.1", "x<=4", False),
        ("2.17.0+nv25.1", "x>=2.16", True),
        ("", "x>=2.16", True),
    ],
)
def test_versions_are_compared_by_number(version, bounds, fits):
    assert requirements.is_within(version, requirements.parse_requirement(bounds).bounds) is fits


def lacks(wanted, **found):
    records = requirements.list_lacking(
        [wanted], {k.replace("_", "-"): v for k, v in found.items()}
    )
    return [(record["found"], record["install"], record["clash"]) for record in records]


def test_a_package_is_there_missing_or_of_another_version():
    assert lacks("keras>=3.12,<4", keras="3.15.1") == []
    assert lacks("keras>=3.12,<4") == [("", "keras>=3.12,<4", False)]
    assert lacks("keras>=3.12,<4", keras="2.15.0") == [("keras 2.15.0", "keras>=3.12,<4", False)]


@pytest.mark.parametrize("wheel", facts.WHEELS)
def test_each_build_of_tensorflow_serves_the_processor(wheel):
    assert lacks(CPU, **{wheel: "2.21.0"}) == []
    # An old one is replaced by its own kind, so that no two own the same files.
    old = lacks(CPU, **{wheel: "2.15.0"})
    assert old == [(f"{wheel} 2.15.0", f"{wheel}>=2.21,<2.22", False)]


def test_cuda_needs_its_libraries_and_no_other_build():
    assert lacks(GPU, tensorflow="2.21.0", **CUDA) == []
    without = lacks(GPU, tensorflow="2.21.0")
    assert without == [("tensorflow 2.21.0 without CUDA's libraries", GPU, False)]
    assert lacks(GPU, tensorflow="2.20.0", **CUDA) == [("tensorflow 2.20.0", GPU, False)]
    assert lacks(GPU, tensorflow_cpu="2.21.0") == [("tensorflow-cpu 2.21.0", GPU, True)]
    assert lacks(GPU) == [("", GPU, False)]


def test_two_builds_in_one_place_clash_whatever_is_wanted():
    both = {"tensorflow": "2.21.0", "tensorflow-cpu": "2.20.0"}
    for wanted in (CPU, GPU):
        assert lacks(wanted, **both, **CUDA) == [
            ("tensorflow 2.21.0 and tensorflow-cpu 2.20.0", wanted, True)
        ]


def test_a_build_that_says_no_version_is_taken_as_it_is():
    assert lacks("tensorflow>=2.16", tensorflow="") == []


def test_this_interpreter_has_what_the_tests_run_on():
    numpy, pytest_ = requirements.read_versions(["numpy"])["numpy"], "pytest>=8"
    assert re.match(r"\d+\.\d+", numpy)
    assert requirements.read_lacking(["numpy>=1.20", pytest_]) == []
    absent = requirements.read_lacking(["no-such-package>=1"])
    assert [record["wanted"] for record in absent] == ["no-such-package>=1"]


def test_keras_between_its_releases_is_keras(monkeypatch):
    installed = {"keras-nightly": "3.16.0.dev2026102704"}
    monkeypatch.setattr(requirements, "_read_version", installed.get)
    assert requirements.read_lacking(["keras>=3.12"]) == []
    assert requirements.read_versions(["keras"])["keras"] == installed["keras-nightly"]
    assert "keras" not in requirements.read_versions(["numpy"])
    installed["keras"] = "3.0.0"  # their files are the same: that of the user's choice counts
    assert [lack["found"] for lack in requirements.read_lacking(["keras>=3.12"])] == ["keras 3.0.0"]


def test_another_interpreter_tells_with_its_standard_library_alone():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpukeras.system import requirements as installed; installed.main(sys.argv[2:])\n"
        "assert 'numpy' not in sys.modules"
    )
    arguments = [sys.executable, "-IB", "-c", code, str(CORE.parent), "no-such-package", "pytest"]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    told = json.loads(said)
    assert told["version"] == ".".join(map(str, sys.version_info[:3]))
    assert [record["wanted"] for record in told["lacking"]] == ["no-such-package"]
    assert told["faults"] == []  # R runs it, so it has a shared library, and venv made it
    # An environment is made of the interpreter behind it, not of another environment.
    behind = subprocess.run(
        [told["python"], "-c", "import sys; print(sys.prefix == sys.base_prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert behind.stdout.strip() == "True"


# The table ---------------------------------------------------------------------------------------


def span(record, name):
    return facts.parse_numbers(record[name]), facts.parse_numbers(record[f"{name}_below"])


def test_what_was_tried_is_within_a_line():
    for tried in TABLE["tried"]:
        fitting = [
            line
            for line in TABLE["lines"]
            if all(
                span(line, name)[0] <= facts.parse_numbers(tried[name]) < span(line, name)[1]
                for name in ("python", "tensorflow", "keras", "numpy")
            )
            and facts.parse_numbers(line["reticulate"]) <= facts.parse_numbers(tried["reticulate"])
        ]
        assert fitting, tried


def test_numpy_2_is_for_the_reticulates_that_know_it():
    newest = [line for line in TABLE["lines"] if span(line, "numpy")[1] > (2,)]
    assert {facts.parse_numbers(line["reticulate"]) for line in newest} == {session.NUMPY_2}


def test_several_devices_were_tried_on_what_is_installed():
    oldest, newest = map(facts.parse_numbers, keras_internals.TRIED["TensorFlow"])
    first, below = span(TABLE["lines"][0], "tensorflow")
    assert oldest <= first
    assert below <= (newest[0], newest[1] + 1)


def test_make_installs_the_same_versions():
    path = REPOSITORY / "python/requirements.txt"
    if not path.exists():
        pytest.skip("an installed package has no python/requirements.txt")
    lines = [
        line.partition("#")[0].partition(";")[0].strip() for line in path.read_text().split("\n")
    ]
    first = TABLE["lines"][0]
    tensorflow = f">={first['tensorflow']},<{first['tensorflow_below']}"
    wanted = [f"tensorflow-cpu{tensorflow}", f"tensorflow{tensorflow}"]
    wanted += [f"{name}>={first[name]},<{first[f'{name}_below']}" for name in ("keras", "numpy")]
    wanted += [f"{one['package']}>={one['from']},<{one['below']}" for one in TABLE["companions"]]
    assert sorted(filter(None, lines)) == sorted(wanted)
