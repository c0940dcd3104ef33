import numpy as np
import pytest

from gpukeras.data.reader.rows import MemoryRows, digest_rows, sample_rows


def digest(x, y=None, rows=None):
    sources = [MemoryRows(np.asarray(part)) for part in (x, y) if part is not None]
    return digest_rows(sources, np.arange(len(x)) if rows is None else rows)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int32])
@pytest.mark.parametrize("shape", [(200, 3), (4, 5, 6, 3)], ids=["table", "images"])
def test_rows_keep_their_digests_in_any_order_and_number(dtype, shape):
    x = np.random.default_rng(1).integers(250, size=shape).astype(dtype)
    all_, order = digest(x), np.random.default_rng(2).permutation(len(x))
    np.testing.assert_array_equal(digest(x[order]), all_[order])
    np.testing.assert_array_equal(digest(x, rows=order[:3]), all_[order[:3]])
    assert len(np.unique(all_)) == len(x)
    x[0].reshape(-1)[-1] += 1
    assert digest(x)[0] != all_[0]


def test_digests_ignore_last_digits_of_features_and_no_bit_of_a_label():
    x, y = np.full((2, 2), 1.1, np.float32), np.array([1.1, 1.1], np.float32)
    near = np.nextafter(np.float32(1.1), np.float32(2))
    x[1, 0] = near
    first, other = digest(x, y)
    assert first == other
    y[1] = near
    first, other = digest(x, y)
    assert first != other


def test_texts_are_known_by_their_letters():
    one, other = MemoryRows(np.array([[1.0], [2.0]])), MemoryRows(np.array([[2.0], [1.0]]))
    one.texts, other.texts = {"": ["", "a", "b"]}, {"": ["", "b", "a"]}
    rows = np.arange(2)
    np.testing.assert_array_equal(digest_rows([one], rows), digest_rows([other], rows))


def test_few_rows_are_read_where_reading_them_takes_long():
    source = MemoryRows(np.zeros((50_000, 2), np.float32))
    assert len(sample_rows(source, np.arange(50_000))) == 10_000
    assert len(sample_rows(source, np.arange(7, 60))) == 53
    source.streamed = "computed"
    rows = sample_rows(source, np.arange(1_000))
    assert (len(rows), rows[0], rows[-1]) == (32, 0, 999)
