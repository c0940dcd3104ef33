"""A worker as a process of this computer: starting, monitoring, stopping, and reading its log.

Each runs under `worker_main`, which ends it when this process ends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.child_process import explain_status

PROGRAM = Path(__file__).with_name("worker_main.py")
STOP_S = 10.0  # `worker_main` kills it after 3 s
LOG_END_BYTES = 65536  # bytes read of a log's end
WORDS = 500  # most characters of an error in a message
# How an error of R begins and what R prints after it, in the languages of R's catalogues (R 4.2).
R_ERROR = re.compile(
    "(Error|Fehler|Erreur|Errore|Erro|Fejl|Feil|Klaida|Błąd|BŁĄD|Ошибка|Hata|错误|錯誤|エラー|"
    "以下にエラー|에러|다음에 오류가)(?![A-Za-z])"
)
NO_ERROR = re.compile(
    "Execution halted|Ausführung angehalten|Exécution arrêtée|Esecuzione interrotta|"
    "Ejecución interrumpida|Execução interrompida|Kørsel stoppet|Stoppa køyring|"
    "Vykdymas sustabdytas|Wykonywanie wstrzymane|Выполнение остановлено|Çalıştırma durduruldu|"
    "停止执行|停止執行|実行が停止されました|실행이 정지되었습니다|"
    "Calls:|Ruft auf:|Appels :|Chiamate:|Kald:|Iškvietimai:|Wywołania:|Вызовы:|"
    "呼叫：|呼び出し:|호출:|"
    "In addition:|Zusätzlich:|De plus :|In aggiunta:|Además:|Além disso:|I tillegg:|Be to:|"
    "Dodatkowo:|Вдобавок:|Ek olarak:|此外:|追加情報:|추가정보:|"
    "Backtrace:|Warning message"
)
# Python's traceback, whose last line names the error; Python without a traceback; a crash.
ERROR = re.compile(r"Traceback \(most recent|[\w.]+(?:Error|Exception)\b|Fatal | \*\*\* caught")


class WorkerProcess:
    """A running worker.

    Args:
        command: Its program and arguments.
        environment: All of its environment variables.
        log: A new file for its output.
        python: The Python that runs `worker_main`.

    Raises:
        OSError: if the log exists already or cannot be written, or Python cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, python: str
    ) -> None:
        """Starts the process."""
        self.log, self._began = log, time.monotonic()
        self._told: dict[str, Any] | None = None
        with log.open("xb") as file:
            self._child = subprocess.Popen(
                [python, "-I", "-S", str(PROGRAM), *command],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # Ctrl-C is for this process, which stops the workers
            )

    def look(self) -> WorkerEnd | None:
        """Returns how it ended; None while it runs."""
        if self._told is None and self._child.poll() is not None:
            self._told = self._hear()
        if self._told is None:
            return None
        status, asked = self._told["status"], self._told["asked"]
        state = "done" if status == 0 else "stopped" if asked else "failed"
        return WorkerEnd(state, status, self._told["seconds"], self._told["ended"])

    def _hear(self) -> dict[str, Any]:
        text = self._child.stdout.read() if self._child.stdout else b""
        self._close()
        with suppress(ValueError):
            return json.loads(text)
        # `worker_main` was killed, and the worker with it.
        now = time.monotonic()
        status = self._child.returncode or None
        return {"status": status, "asked": False, "seconds": now - self._began, "ended": now}

    @property
    def seconds(self) -> float:
        """Returns how long it has run."""
        return time.monotonic() - self._began

    def ask(self) -> None:
        """Asks it to end, without waiting."""
        with suppress(OSError):
            if self._child.stdin:
                self._child.stdin.close()

    def stop(self) -> None:
        """Stops it; may be called again."""
        self.ask()
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:  # stuck in the kernel: a bad driver can do that
            self._child.kill()
            self._child.wait(STOP_S)
        self.look()

    def _close(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker.

    Args:
        state: "done", "failed", or "stopped" if it was asked to end.
        status: Its exit status, minus a signal's number, or None where that is unknown.
        seconds: How long it ran.
        ended: When, in seconds of the computer's monotonic clock.
    """

    state: str
    status: int | None
    seconds: float
    ended: float

    @property
    def reason(self) -> str:
        """How it ended, such as "exit status 3"; "" for a successful end."""
        return "its end was not seen" if self.status is None else explain_status(self.status)


# Logs ---------------------------------------------------------------------------------------------


def read_log_end(log: str | Path, lines: int = 20) -> list[str]:
    """Returns the last lines of a log; none where there is no log."""
    with suppress(OSError), open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_END_BYTES))
        text = file.read().decode(errors="replace")
        # A progress bar rewrites its line: a terminal would show the text that was written last.
        shown = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        return [line for line in shown if line.strip()][-lines:]
    return []


def parse_error(lines: Sequence[str]) -> str:
    """Returns the error that ended a program, from its log: the last error of R or Python.

    Args:
        lines: The last lines of its log.

    Returns:
        One line, at most 500 characters; "" where there is no error.
    """
    starts = [place for place, line in enumerate(lines) if R_ERROR.match(line) or ERROR.match(line)]
    if not starts:
        return ""
    error = lines[starts[-1] :]
    words = _error_of_r(error) if R_ERROR.match(error[0]) else _error_of_python(error)
    return " ".join(" ".join(words).split())[:WORDS]


def _error_of_python(lines: Sequence[str]) -> Sequence[str]:
    """Returns the line that names an error: the first, or the first unindented of a traceback."""
    if not lines[0].startswith("Traceback"):
        return lines[:1]
    return [line for line in lines[1:] if not line.startswith((" ", "\t"))][:1] or lines[:1]


def _error_of_r(lines: Sequence[str]) -> Sequence[str]:
    """Returns R's message, without the lines printed after it, and without line prefixes."""
    ends = (place for place, line in enumerate(lines) if place and NO_ERROR.match(line))
    return [line.removeprefix("! ") for line in lines[: next(ends, len(lines))]]
