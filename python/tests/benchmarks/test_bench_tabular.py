import bench_tabular
import numpy as np
import pytest
from tabular_tables import Table


def test_splits_are_fixed_and_cover_all_rows():
    train, test = bench_tabular.split(100, 1)
    assert (len(train), len(test)) == (80, 20)
    assert set(train) | set(test) == set(range(100))
    assert not np.array_equal(test, bench_tabular.split(100, 2)[1])
    np.testing.assert_array_equal(test, bench_tabular.split(100, 1)[1])


def test_errors_of_numbers_are_in_deviations_and_of_classes_shares():
    rows = np.array([1, 2, 3])
    numbers = Table("numbers", (), np.array([9.0, 0.0, 2.0, 4.0]), 0)
    deviation = np.std([0, 2, 4])
    found = bench_tabular.measure_error(numbers, rows, np.array([[1.0], [3.0], [5.0]]))
    assert found == pytest.approx(1 / deviation)
    two = Table("two", (), np.array([0, 1, 0, 1], np.int32), 2)
    shares = np.array([[0.4], [0.2], [0.9]])  # the first is wrong
    assert bench_tabular.measure_error(two, rows, shares) == pytest.approx(1 / 3)
    three = Table("three", (), np.array([0, 1, 0, 2], np.int32), 3)
    codes = np.array([1, 0, 1])
    assert bench_tabular.measure_error(three, rows, codes) == pytest.approx(1 / 3)
    assert bench_tabular.measure_error(three, rows, np.eye(3)[codes]) == pytest.approx(1 / 3)


def make_runs(**errors):
    return [
        {"table": str(table), "way": way.replace("_", " "), "seed": 1, "error": error, "seconds": 2}
        for way, each in errors.items()
        for table, error in enumerate(each, 1)
    ]


def test_the_summary_has_ranks_and_ratios():
    runs = make_runs(trees=(0.2, 0.2, 0.2), keras_mlp=(0.4, 0.1, 0.3), resnet=(0.1, 0.3, 0.1))
    table = bench_tabular.format_table(runs)
    assert table[0] == "| | 1 | 2 | 3 | mean rank | s |"
    assert table[2] == "| resnet | 0.100 | 0.300 | 0.100 | 1.7 | 2.0 |"
    lines = bench_tabular.compare([*runs, *make_runs(dcn=(0.3, 0.1, 0.3))])
    assert "resnet: median of its error in that of trees 0.500, ahead on 2 of 3 tables" in lines
    best = "best of ours: median of its error in that of trees 0.500, ahead on 3 of 3 tables"
    assert best in lines


def test_a_run_that_the_file_holds_is_not_repeated(tmp_path):
    table, path, asked = Table("t", (), np.arange(10.0), 0), tmp_path / "runs.jsonl", []

    def way(given, seed):
        asked.append(seed)
        return given.values[bench_tabular.split(10, seed)[1]]

    for seeds in (1, 2):
        runs = bench_tabular.read_runs(str(path))
        bench_tabular.run_table(table, {"exact": way}, seeds, runs, path)
    assert asked == [1, 2]
    assert [run["error"] for run in bench_tabular.read_runs(str(path))] == [0.0, 0.0]
