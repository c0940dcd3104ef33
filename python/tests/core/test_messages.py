import pytest

from gpukeras.core.messages import (
    LENGTH,
    count_of,
    find_reason,
    hide_credentials,
    list_some,
    mib,
    percent,
)


@pytest.mark.parametrize(("share", "text"), [(0, "0 %"), (0.125, "12 %"), (1, "100 %")])
def test_shares_are_whole_percent(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "epoch", "1 epoch"),
        (1.0, "row", "1 row"),
        (1, "batch", "1 batch"),
        (2000, "batch", "2,000 batches"),
        (0.5, "epoch", "0.5 epochs"),
        (1234567, "image file", "1,234,567 image files"),
    ],
)
def test_nouns_agree_with_their_number(number, noun, text):
    assert count_of(number, noun) == text


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("It failed.", "It failed"),
        ("\n  It failed. \nTraceback", "It failed"),
        ("Exception encountered when calling Own.call().\n\n\x1b[1mBad shape.\x1b[0m", "Bad shape"),
        (
            "{{function_node f}} Error in user-defined function passed to MapDataset:9 "
            "transformation with iterator: Iterator::Root::Map: ValueError: none.",
            "ValueError: none",
        ),
        ("{{function_node __wrapped__MatMul}} No room. [Op:MatMul] name: ", "No room"),
        (
            'in user code:\n\n    File "a.py", line 5, in f  *\n        raise_(x)\n'
            '    File "b.py", line 8, in raise_  *\n        raise ValueError("none")\n\n'
            "    ValueError: none: at all\n",
            "none: at all",
        ),
        (
            "Graph execution error:\n\nDetected at node a/b defined at (most recent call last):\n"
            '  File "a.py", line 5, in f\n\n  File "b.py", line 8, in g\n\n'
            "indices[1] = 3 is not in [0, 3)\n\t [[{{node a/GatherV2}}]] [Op:__inference_f_2]",
            "indices[1] = 3 is not in [0, 3)",
        ),
        (
            "Graph execution error:\n\nDetected at node a defined at (most recent call last):\n"
            "<stack traces unavailable>\n2 root error(s) found.\n"
            "  (0) INVALID_ARGUMENT:  No room.\n"
            "\t [[{{node a}}]]\n  (1) INVALID_ARGUMENT:  Too long.",
            "No room",
        ),
        (
            "{{function_node f}} Received a label value of 3 which is outside the valid range of "
            "[0, 3).  Label values: 0 2 3\n\t [[{{node a}}]]",
            "Received a label value of 3 which is outside the valid range of [0, 3)",
        ),
        (
            "assertion failed: [too large] [Condition x < y did not hold:] [x (data:0) = ] [[0.4]]",
            "assertion failed: [too large] [Condition x < y did not hold:]",
        ),
        ("", "ValueError"),
        ("Exception encountered when calling Own.call().", "ValueError"),
        ("x" * 1000, "x" * LENGTH),
    ],
)
def test_the_line_of_an_error_that_says_why_is_found(said, reason):
    assert find_reason(ValueError(said)) == reason


def test_many_names_are_cut():
    assert list_some(["a"]) == "a"
    assert list_some(["a", "b"], 2) == "a, b"
    assert list_some(["a", "b", "c"], 2) == "a, b and 1 more"
    assert list_some([str(one) for one in range(1005)]) == "0, 1, 2, 3, 4 and 1,000 more"


def test_bytes_are_mebibytes():
    assert mib(2**30) == "1,024 MiB"
    assert mib(3 * 2**19, 1) == "1.5 MiB"
    assert mib(2**19, 1) == "0.5 MiB"
    assert mib(2**19) == "512.0 KiB"
    assert mib(2**16, 1) == "64.0 KiB"
    assert mib(1000) == "1,000 bytes"
    assert mib(0) == "0 MiB"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("at postgresql://me:pass@word@host:1/db failed", "at postgresql://***@host:1/db failed"),
        ("host=a password=pass user=me", "host=a password=*** user=me"),
        ("PASSWORD = 'a b' port=1", "PASSWORD = *** port=1"),
        ('Pwd="a;b";Server=c', "Pwd=***;Server=c"),
        ("access_key=abc, token=def;", "access_key=***, token=***;"),
        ("password authentication failed", "password authentication failed"),
    ],
)
def test_credentials_are_hidden(said, shown):
    assert hide_credentials(said) == shown
