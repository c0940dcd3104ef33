import pytest

from gpukeras import SpecError
from gpukeras.serving.options import ServeSpec, pass_options, read_options

SECRET = "0123456789abcdef"


def test_a_server_listens_on_loopback_unless_told_otherwise():
    spec = ServeSpec()
    assert (spec.host, spec.loopback, spec.token) == ("127.0.0.1", True, None)
    assert (spec.ports[0], spec.ports[-1]) == (8000, 8099)
    assert list(ServeSpec(port=81).ports) == [81]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "[fd00::5]", "gpu1.lab.org"])
def test_a_host_that_others_can_reach_needs_a_token(host):
    with pytest.raises(SpecError, match="can be reached by others, and there is no token") as found:
        ServeSpec(host=host)
    assert "GPUKERAS_TOKEN=$(openssl rand -hex 32)" in found.value.hint
    assert ServeSpec(host=host, token=SECRET).loopback is False


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "[::1]"]
)
def test_loopback_addresses_need_none(host):
    assert ServeSpec(host=host).loopback is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": ""}, '`host` must be an IP address or a name, such as "127.0.0.1", not ""'),
        ({"host": 3}, "`host` must be an IP address or a name"),
        ({"host": "1.2.3"}, "`host` must be an IP address or a name"),
        ({"host": "a b"}, "`host` must be an IP address or a name"),
        ({"port": 0}, "`port` must be a whole number from 1 to 65535, not 0"),
        ({"max_batch": 0}, "`max_batch` must be a whole number from 1 to 65536"),
        ({"max_wait": -1}, "`max_wait` must be a number from 0 to 1000"),
        ({"max_body": 10}, "`max_body` must be a whole number from 1024"),
        ({"tokens": 1}, "Unknown option `tokens`"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(SpecError, match=words):
        ServeSpec.from_dict(options)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("short", "`token` has 5 characters, fewer than 16"),
        ("with spaces in between", "`token` must be visible ASCII characters without spaces"),
        ("gehört-nicht-hierher", "`token` must be visible ASCII characters"),
        (1234567890123456, "`token` must be visible ASCII characters"),
    ],
)
def test_bad_tokens_are_refused_and_not_shown(token, words):
    with pytest.raises(SpecError, match=words) as found:
        ServeSpec(token=token)
    assert str(token) not in f"{found.value}{found.value.details}"


def test_the_token_comes_from_the_environment_and_goes_by_it():
    spec = read_options({"port": None, "token": None}, {"GPUKERAS_TOKEN": SECRET})
    assert spec.token == SECRET
    assert SECRET not in repr(spec)
    arguments, variables = pass_options(spec)
    assert SECRET not in " ".join(arguments)
    assert variables == {"GPUKERAS_TOKEN": SECRET}
    assert read_options({"token": SECRET[::-1]}, {"GPUKERAS_TOKEN": SECRET}).token == SECRET[::-1]
    assert read_options({}, {"GPUKERAS_TOKEN": ""}).token is None


def test_options_pass_through_the_command_line():
    from gpukeras.serving.server_main import _parse

    spec = ServeSpec("::1", 8123, None, 17, 3.5, 2048)
    given = vars(_parse(["m.keras", *pass_options(spec)[0]]))
    assert given.pop("model") == "m.keras"
    assert given.pop("attached") is False
    assert read_options(given, {}) == spec


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/"),
        ("0.0.0.0", "http://127.0.0.1:80/"),
        ("::1", "http://[::1]:80/"),
        ("gpu1", "http://gpu1:80/"),
    ],
)
def test_the_address_for_clients_of_this_computer(host, url):
    assert ServeSpec(host=host, token=SECRET).url(80) == url


def test_a_page_of_another_name_cannot_ask_without_a_token():
    assert "evil.example" not in ServeSpec().allowed_hosts()
    assert {"127.0.0.1", "localhost", "[::1]"} <= set(ServeSpec().allowed_hosts())
    assert ServeSpec(token=SECRET).allowed_hosts() == ()
