"""A real PostgreSQL server for tests, in a folder of its own on this computer's loopback."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from glob import glob
from pathlib import Path

PASSWORD = "open-sesame"


def find_programs():
    """Returns the folder of the newest version's programs, or None."""
    folders = [*sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    on_path = shutil.which("initdb")
    folders += [os.path.dirname(on_path)] if on_path else []
    return next((Path(each) for each in folders if Path(each, "initdb").exists()), None)


def explain_missing():
    """Returns why no server can be started, or ""."""
    if find_programs() is None:
        return "PostgreSQL is not installed"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL does not run as root"
    return ""


class Server:
    """A running server.

    Args:
        folder: Its folder.
        port: Its port.
    """

    def __init__(self, folder, port):
        self.folder, self.url = folder, f"postgresql://tester:{PASSWORD}@127.0.0.1:{port}/postgres"

    def run(self, program, *args):
        # It refuses to run as root. The server keeps the output open, so that it is no pipe.
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        with open(self.folder / "out", "ab") as output:
            command = [
                *user,
                str(find_programs() / program),
                "-D",
                str(self.folder / "data"),
                *args,
            ]
            subprocess.run(
                command, check=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/"
            )

    def stop(self):
        """Ends the server at once, as if it was killed."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self.run("pg_ctl", "-m", "immediate", "-w", "stop")


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve():
    """Yields a running server."""
    with tempfile.TemporaryDirectory(prefix="gpukeras-postgres-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres")
        server = Server(folder, port := _free_port())
        login = ["-U", "tester", "-A", "scram-sha-256", "--pwfile", str(folder / "password")]
        server.run("initdb", *login, "-E", "UTF8", "--lc-messages=C", "--no-sync")
        how = f"-c listen_addresses=127.0.0.1 -c fsync=off -p {port} -k {folder}"
        server.run("pg_ctl", "-w", "-o", how, "start")
        try:
            yield server
        finally:
            server.stop()
