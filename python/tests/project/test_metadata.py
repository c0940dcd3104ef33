"""What tells others of the package agrees with itself, and its placeholders are plain."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACEHOLDERS = r"https://example\.org/gpukeras|gpukeras@example|<owner>"
PLACES = {"DESCRIPTION", "README.md", "CITATION.cff", "codemeta.json"}
TELLS_OF_THEM = {"CONTRIBUTING.md", "python/tests/project/test_metadata.py"}
PLACES_OF_MAKE = {"man/gpukeras-package.Rd"}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def read_field(name):
    """A field of DESCRIPTION, on one line."""
    found = re.search(rf"^{name}: (.*(?:\n .*)*)", read("DESCRIPTION"), re.MULTILINE)
    return " ".join(found[1].split())


def test_name_version_and_address_are_the_same_everywhere():
    described = json.loads(read("codemeta.json"))
    cited = dict(re.findall(r"^([a-z-]+): (.+)$", read("CITATION.cff"), re.MULTILINE))
    title = f"gpukeras: {read_field('Title')}"
    assert (described["name"], json.loads(cited["title"])) == (title, title)
    assert described["version"] == cited["version"] == read_field("Version")
    assert described["url"] == cited["url"] == read_field("URL")
    assert described["issueTracker"] == read_field("BugReports")


def test_placeholders_stand_where_contributing_says():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a checkout of git")
    names = [ROOT / name for name in listed.stdout.splitlines()]
    texts = {path: path.read_bytes().decode(errors="ignore") for path in names if path.is_file()}
    found = {
        str(path.relative_to(ROOT)) for path, text in texts.items() if re.search(PLACEHOLDERS, text)
    }
    assert found - TELLS_OF_THEM - PLACES_OF_MAKE == PLACES
    assert all(f"`{name}`" in read("CONTRIBUTING.md") for name in PLACES)
