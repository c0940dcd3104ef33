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


def test_the_summary_has_ranks_and_ratios():
    def errors(**given):
        return {name.replace("_", " "): {"errors": [error]} for name, error in given.items()}

    found = {
        "one": errors(trees=0.2, keras_mlp=0.4, resnet=0.1),
        "two": errors(trees=0.2, keras_mlp=0.1, resnet=0.3),
        "three": errors(trees=0.2, keras_mlp=0.3, resnet=0.1),
    }
    lines = bench_tabular.summarise(found)
    assert lines[0] == "mean rank 1.7: resnet"
    assert "resnet: median of its error in that of trees 0.500, ahead on 2 of 3 tables" in lines
