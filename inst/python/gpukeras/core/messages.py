"""Formats numbers, names and error reasons for messages."""

import re
from collections.abc import Sequence

from gpukeras.core.errors import GpuKerasError

LENGTH = 200  # characters of a reason; Keras appends whole configurations
# Text around the reason: the frames and the class that AutoGraph puts before an error, colour
# codes, names of nodes and of the operation.
_AROUND = re.compile(
    r"\A\s*in user code:\n(?: *File \".*\n.*\n| *\n)*(?: *\w+: )?|\x1b\[\d*m|\{\{.*?\}\}\s*|"
    r"\s*\[Op:.*$|Error in user-defined function passed to \S+ transformation with iterator: \S+: ",
    re.MULTILINE,
)
# Passwords in what a database's driver says: in URLs, and as settings of a connection.
_SECRETS = re.compile(
    r"(?<=://)\S+(?=@)|((?:password|passwd|pwd|passphrase|secret|token|\w*_key)\s*=\s*)"
    r"(?:'[^']*'|\"[^\"]*\"|[^\s;,&)'\"]+)",
    re.IGNORECASE,
)
_IN_FRONT = "Exception encountered"  # the line that Keras puts before a layer's error
# What TensorFlow puts around the sentence of a failed operation: where the operation was made
# before it, and the operation and its function behind it.
_MADE_AT = re.compile(
    r"Graph execution error:|Detected at node|<stack traces unavailable>|File \"|"
    r"\d+ root error\(s\) found"
)
_BEHIND = re.compile(r"\s*(?:\[\[|Stack trace for op definition|The op is created at)")
_NUMBERED = re.compile(r"\(\d+\) [A-Z_]+:\s*")
# Values of rows in TensorFlow's sentences: of a batch's labels, and of what an assertion compared.
_ROWS = re.compile(r"\s*(?:Label values:| \[x \(.*? = \]).*")


def percent(share: float) -> str:
    """Formats a share from 0 to 1 as whole percent, such as "12 %"."""
    return f"{100 * share:.0f} %"


def count_of(number: float, noun: str) -> str:
    """Formats a number with its noun, such as "1 epoch" or "2,000 batches".

    Args:
        number: The count.
        noun: The noun in the singular, with or without an adjective.
    """
    text = f"{number:,.0f}" if number == int(number) else f"{number:g}"
    ending = "" if number == 1 else "es" if noun.endswith(("tch", "s", "x")) else "s"
    return f"{text} {noun}{ending}"


def count_values(values: Sequence[object]) -> str:
    """Describes what R gave as a vector or list, such as "2 numbers" or "a list".

    An unnamed list of several numbers, texts or truth values arrives as such a vector does; a
    vector of one is no list here.
    """
    nouns = {bool: "logical value", int: "number", float: "number", str: "string"}
    kinds = {nouns.get(type(each)) for each in values}
    noun = kinds.pop() if len(kinds) == 1 else None
    if not values:
        return "a vector or list of length 0"
    return count_of(len(values), noun) if noun and len(values) > 1 else "a list"


def list_some(names: Sequence[str], shown: int = 5) -> str:
    """Joins names with commas, such as "a, b, c, d, e and 140 more"."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more:,} more" if more > 0 else "")


def list_names(names: Sequence[str]) -> str:
    """Joins names of arguments or options, such as "`a`, `b` and `c`"."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def mib(size: float, digits: int = 0) -> str:
    """Formats bytes as mebibytes, such as "1,024 MiB"; as less where that would be rounded away."""
    if 0 < size < 2**20 / 10**digits:
        return f"{size / 1024:,.1f} KiB" if size >= 1024 else count_of(int(size), "byte")
    return f"{size / 2**20:,.{digits}f} MiB"


def system_reason(error: OSError) -> str:
    """Returns the operating system's reason for an error, such as "Permission denied"."""
    return error.strerror or type(error).__name__


def find_reason(error: BaseException) -> str:
    """Extracts the line that states the reason from an error of Keras, TensorFlow or the user.

    Returns:
        At most 200 characters, without a final period and the values of rows; the error's class if
        it has no text. Of an error of our own its whole message, without the hint.
    """
    if isinstance(error, GpuKerasError):
        return error.message.rstrip(".")
    text = str(error)
    lines = [line.strip() for line in _AROUND.sub("", _BEHIND.split(text)[0]).splitlines()]
    made = [place for place, line in enumerate(lines) if _MADE_AT.match(line)]
    if made and not lines[made[0]].startswith("File"):
        lines = lines[made[-1] + 1 :]
    told = [_NUMBERED.sub("", line) for line in lines if line and not line.startswith(_IN_FRONT)]
    return _ROWS.sub("", (told or [type(error).__name__])[0])[:LENGTH].rstrip(".")


def hide_credentials(text: str) -> str:
    """Replaces passwords, and user names in URLs, by "***"."""
    return _SECRETS.sub(lambda match: f"{match[1] or ''}***", text)
