import pytest

from gpukeras import ServiceError, SpecError
from gpukeras.serving.requests import parse_json, parse_request


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'{"a": NaN}',
        b'{"rows": [{"a": 1, "a": 2}]}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000,
        "{}".encode("utf-16"),
    ],
)
def test_what_is_no_object_of_json_is_a_bad_request(body):
    with pytest.raises(ServiceError, match="The body must be an object of JSON") as found:
        parse_json(body)
    assert found.value.details["status"] == 400


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"x": [[1]], "y": 1}', "A request has an unknown field, beside 1 known ones"),
        (b'{"x": [[1]], "type": "link"}', '`type` must be one of "response", "class"'),
        (b'{"x": [[1]], "type": ["class"]}', "`type` must be one of"),
        (b'{"x": [[1]], "interval": 1}', "`interval` must lie between 0 and 1"),
        (b'{"x": [[1]], "interval": "a"}', "`interval` must be a number"),
        (b'{"x": [[1]], "interval": 0.5, "type": "class"}', '`interval` is of the type "response"'),
    ],
)
def test_unknown_questions_are_refused(body, words):
    with pytest.raises(SpecError, match=words):
        parse_request(body, None)


def test_requests_of_one_kind_can_be_predicted_together():
    one, other = (parse_request(b'{"x": [[1, 2]]}', None) for _ in range(2))
    assert one.group == other.group
    for body in (
        b'{"x": [[1, 2]], "type": "class"}',
        b'{"x": [[1, 2]], "interval": 0.9}',
        b'{"x": [[1, 2, 3]]}',
    ):
        assert parse_request(body, None).group != one.group
