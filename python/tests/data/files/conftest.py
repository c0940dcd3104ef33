"""One S3 server for all tests of this folder: moto's, behind a proxy that breaks its answers."""

import os

import pytest
from object_servers import KEY, SECRET, breaking, explain_missing, s3_server
from pyarrow import fs

from gpukeras.data.files import stores


class Bucket:
    """A bucket of the server's, written past the proxy."""

    def __init__(self, port, answers, url):
        self.port = port
        self.answers = answers
        self.url = url
        self.files = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"http://127.0.0.1:{port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        self.files.create_dir("bucket")

    def put(self, key, content):
        with self.files.open_output_stream(f"bucket/{key}", compression=None) as file:
            file.write(content)
        return len(content)

    def remove(self, key):
        self.files.delete_file(f"bucket/{key}")


@pytest.fixture(scope="session")
def server():
    if explain_missing():
        pytest.skip(explain_missing())
    with s3_server() as port, breaking(port) as (url, answers):
        yield Bucket(port, answers, url)


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("R_SESSION_TMPDIR", str(tmp_path))
    monkeypatch.setattr(stores, "STORE_ATTEMPTS", 2)
    monkeypatch.setattr(stores, "READ_SECONDS", 1.0)
    server.answers.rule = None
    server.answers.requests.clear()
    server.answers.sent = 0
    server.answers.released.clear()
    yield server
    server.answers.released.set()
    assert os.listdir(tmp_path) == []
