"""Recognises numbers that came as text, and says in R words how to make numbers of them."""

from __future__ import annotations

import re
from collections.abc import Collection

NUMBER = re.compile(r"\s*[-+]?((0|[1-9]\d*|[1-9]\d{0,2}(,\d{3})+)(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*")
COMMA = re.compile(
    r"\s*[-+]?(0|[1-9]\d*|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?\s*"
)  # for the decimal point
SIGNS = re.compile(r"[%$\u20ac\u00a3\u00a5]")  # percent and currencies
ABSENT = frozenset(("", "-", "--", ".", "?", "na", "n/a", "nan", "null", "none", "missing"))
LEAST, SHARE = 3, 0.8  # texts that are numbers: at least so many, and this share


def count_numbers(texts: Collection[str]) -> int:
    """Returns how many texts are numbers as R reads them, or with commas between thousands."""
    return sum(NUMBER.fullmatch(text) is not None for text in texts)


def are_numbers(texts: Collection[str], least: int = LEAST) -> bool:
    """Whether most different texts are numbers, also with other signs; gaps do not count."""
    return bool(explain_conversion(texts, "x", least))


def explain_conversion(
    texts: Collection[str], name: str, least: int = LEAST, factor: bool = False
) -> str:
    """Returns a sentence that tells how R makes numbers of texts; "" if most are no numbers.

    Args:
        texts: The different texts.
        name: Name of the column.
        least: The fewest texts that are numbers.
        factor: Whether they are levels of a factor, of which R makes its codes.
    """
    there = [text for text in texts if text.strip().lower() not in ABSENT]
    plain = [SIGNS.sub("", text) for text in there]
    points, commas = count_numbers(plain), sum(COMMA.fullmatch(text) is not None for text in plain)
    if max(points, commas) < max(least, SHARE * len(there)):
        return ""
    call = name if name.isidentifier() else "x"
    call = f"as.character({call})" if factor else call
    signs = sorted(set(SIGNS.findall("".join(there))))
    if len(signs) == 1:
        call = f'sub("{signs[0]}", "", {call}, fixed = TRUE)'
    elif signs:
        call = f'gsub("[{"".join(signs)}]", "", {call})'
    if commas > points:
        call = f'gsub(".", "", {call}, fixed = TRUE)' if any("." in one for one in plain) else call
        call = f'sub(",", ".", {call}, fixed = TRUE)'
    elif any("," in text for text in plain):
        call = f'gsub(",", "", {call})'
    gaps = ' A text such as "-" becomes NA.' if len(there) < len(texts) else ""
    return f"Make numbers of them: as.numeric({call}).{gaps}"
