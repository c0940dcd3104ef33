"""What `make test-peer` says of a folder, and makes of what pytest wrote down."""

import json

import peer
import pytest
from explained import is_rounding


def source(folder, version):
    path = folder / "keras" / "src"
    path.mkdir(parents=True)
    (path / "version.py").write_text(f'__version__ = "{version}"\n')
    return str(folder)


def test_a_folder_of_another_version_is_told_from_one_that_serves(tmp_path):
    folder = source(tmp_path, "3.15.1")
    assert peer.check_source(folder, "3.15.1") == ""
    assert peer.check_source(folder, "3.16.0") == (
        "KERAS_SOURCE holds Keras 3.15.1, but 3.16.0 is installed. "
        "In a git clone, run git checkout v3.16.0."
    )


@pytest.mark.parametrize(
    ("folder", "said"),
    [("", "Set KERAS_SOURCE to a folder"), ("/nowhere", "KERAS_SOURCE holds no sources of Keras")],
)
def test_a_missing_folder_is_told(folder, said):
    assert peer.check_source(folder, "3.15.1").startswith(said)


def test_only_files_that_train_evaluate_or_predict_are_run(tmp_path):
    folder = tmp_path / "keras" / "src" / "callbacks"
    folder.mkdir(parents=True)
    (folder / "csv_logger_test.py").write_text("model.fit(x)")
    (folder / "history_test.py").write_text("model.layers")
    assert peer.find_files(tmp_path) == ["keras/src/callbacks/csv_logger_test.py"]


def record(test, outcome, **more):
    known = {"calls": [], "raised": [], "refusal": "", "error": ""}
    return {"test": test, "outcome": outcome, **known, **more}


def test_each_test_passes_is_refused_or_differs():
    records = {
        "a": record("a", "passed", refusal="a sentence that the test expected"),
        "b": record("b", "failed", refusal="`x` must be numeric.", raised=[2]),
        "both": record("both", "failed", refusal="`loss` names no output.", raised=[2]),
        "c": record("c", "failed", error="Arrays are not\nequal"),
        "test_fit_sparse_tf": record("test_fit_sparse_tf", "failed", error="False is not true"),
    }
    wanted = ["a", "b", "both", "c", "d", "test_fit_sparse_tf"]
    native = {test: record(test, "passed") for test in wanted}
    native["both"] = record("both", "passed", raised=[2])
    native["b"] = record("b", "passed", raised=[1])
    found = peer.compare(native, wanted, records)
    [(_, reason)] = found.pop("explained")
    assert reason.startswith("Sparse rows reach the model as dense ones")
    assert found == {
        "passes": [("a", "")],
        "refused by both": [("both", "`loss` names no output.")],
        "refused": [("b", "`x` must be numeric.")],
        "differs": [("c", "Arrays are not equal"), ("d", "It was not run to its end.")],
    }


def test_a_failure_outlasts_what_is_written_after_it(tmp_path):
    path = tmp_path / "records.jsonl"
    lines = [record("a", "failed"), record("a", "passed"), record("b", "passed")]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = peer.read_records(path)
    assert {name: one["outcome"] for name, one in found.items()} == {"a": "failed", "b": "passed"}


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        ("AssertionError: 22.225841522216797 != 22.22584342956543", True),
        ("AssertionError: 22.225841522216797 != 22.22594342956543", False),
        ("AssertionError: 22.5 != None", False),
    ],
)
def test_only_a_rounding_is_explained_by_rounding(error, explained):
    assert is_rounding(error) == explained
