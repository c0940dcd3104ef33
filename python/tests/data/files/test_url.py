import pytest

from gpukeras import DataError
from gpukeras.data.files.stores import parse_url


@pytest.mark.parametrize(
    ("given", "host", "key", "user", "password", "options", "shown"),
    [
        ("s3://b/a/c.csv", "b", "a/c.csv", "", "", {}, "s3://b/a/c.csv"),
        ("S3://k:p%2Fq@b/c.csv", "b", "c.csv", "k", "p/q", {}, "s3://b/c.csv"),
        ("s3://b/a b/%41@x.csv", "b", "a b/%41@x.csv", "", "", {}, "s3://b/a b/%41@x.csv"),
        ("s3://b/*.csv?region=eu", "b", "*.csv", "", "", {"region": "eu"}, "s3://b/*.csv"),
        ("s3://b/a?.csv", "b", "a?.csv", "", "", {}, "s3://b/a?.csv"),
        ("gcs://anonymous@b/c", "b", "c", "anonymous", "", {}, "gs://b/c"),
        ("abfs://c/x", "c", "x", "", "", {}, "abfs://c/x"),
        ("abfss://c@a.dfs.net/x", "c@a.dfs.net", "x", "", "", {}, "abfs://c@a.dfs.net/x"),
        ("abfs://c:pw@a.dfs.net/x", "c@a.dfs.net", "x", "", "pw", {}, "abfs://c@a.dfs.net/x"),
        ("https://u:p@h:8/a.csv?sig=1", "h:8", "a.csv?sig=1", "u", "p", {}, "https://h:8/a.csv"),
        ("http://[::1]:8/a.csv", "[::1]:8", "a.csv", "", "", {}, "http://[::1]:8/a.csv"),
    ],
)
def test_an_address_is_taken_apart(given, host, key, user, password, options, shown):
    url = parse_url(given, "x")
    assert (url.host, url.key, url.user, url.password) == (host, key, user, password)
    assert (dict(url.options), url.shown) == (options, shown)
    assert "pw" not in repr(url)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ftp://me:open-sesame@h/a.csv", "`x`: ftp:// is not read. Known are s3://"),
        ("s3://key:open/sesame@b/c.csv", r"names no bucket\. Write s3://bucket/key, and %2F"),
        ("s3:///open-sesame.csv", "names no bucket"),
        ("s3://b/c.csv?secret=open-sesame", "an option that is not known.*region, endpoint_overr"),
        ("abfs://c/x?sig=open-sesame", "not known. Known are: none"),
        ("https://", "names no host"),
        ("https://u:open-sesame@h:port/x", "names no host"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(given, message):
    with pytest.raises(DataError, match=message) as raised:
        parse_url(given, "x")
    assert "sesame" not in f"{raised.value} {raised.value.details}"
