"""Learns a vocabulary and encodes texts as numbers by Keras' `TextVectorization`.

Each different text is vectorised once, in blocks, and its numbers are written to all rows that
have it. A rule is plain data; the Keras layer is rebuilt from it when it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.features import require_feature
from gpukeras.core.errors import SpecError
from gpukeras.core.options import Spec, check_choice, check_count, check_names, option
from gpukeras.data.arrays import EXACT_FLOAT32, column_fault, row_blocks
from gpukeras.data.recipe.imputation import nothing_observed
from gpukeras.data.recipe.targets import count_codes, spread_codes

OUTPUTS = ("tf_idf", "multi_hot", "count", "int")
STANDARDIZE = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
SPLIT = ("whitespace", "character")
UNKNOWN = "[UNK]"  # Keras' token for all tokens outside of the vocabulary
MAX_NGRAM = 100  # tokens; longer runs hardly ever repeat
CHARACTER_BYTES = 32  # TensorFlow's memory for one character, if each is a token


def _check_ngrams(arg: str, ngrams: Any) -> tuple[int, ...]:
    if isinstance(ngrams, (list, tuple)):
        return tuple(check_count(arg, length, 1, MAX_NGRAM) for length in ngrams)
    return tuple(range(1, check_count(arg, ngrams, 1, MAX_NGRAM) + 1))


@dataclass(frozen=True)
class TextSpec(Spec):
    """The options for encoding columns of texts.

    Args:
        columns: The columns' names.
        max_tokens: Size of the vocabulary, which holds the most frequent tokens of the training
            rows, one token for all unknown ones and, for "int", the padding. At most 2^24, up to
            which float32 is exact.
        output: "tf_idf" (counts weighted by how rare a token is), "count" or "multi_hot" (0 or 1)
            make one feature per token; "int" makes one feature per position in the text: the
            token's number for an Embedding layer, 0 for padding, 1 for an unknown token.
        sequence_length: Positions for "int", longer texts are cut; None for the longest text of
            the training rows.
        ngrams: Longest run of tokens that counts as a token, or the lengths of such runs; None
            for single tokens.
        standardize: "lower_and_strip_punctuation", "lower", "strip_punctuation" or None; only
            ASCII letters and punctuation are changed, as in Keras.
        split: "whitespace" separates tokens, or each "character" is a token.
    """

    columns: tuple[str, ...] = option((), check_names, "columns", False)
    max_tokens: int = option(1000, check_count, 2, EXACT_FLOAT32)
    output: str = option("tf_idf", check_choice, OUTPUTS)
    sequence_length: int | None = option(None, check_count)
    ngrams: tuple[int, ...] | None = option(None, _check_ngrams)
    standardize: str | None = STANDARDIZE[0]
    split: str = option(SPLIT[0], check_choice, SPLIT)

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        super().__post_init__()
        if self.standardize is not None:
            check_choice("standardize", self.standardize, STANDARDIZE)
        if self.sequence_length is not None and self.output != "int":
            raise SpecError(
                f'`sequence_length` needs `output = "int"`, not "{self.output}".',
                arg="sequence_length",
            )
        check_count("max_tokens", self.max_tokens, 3 if self.output == "int" else 2, EXACT_FLOAT32)


@dataclass(frozen=True)
class TextRule:
    """The learned encoding of a column of texts.

    Args:
        output: As in `TextSpec`, like the last three.
        tokens: The vocabulary, the most frequent token first, without unknown and padding.
        weights: Factors of the counts for "tf_idf"; that of unknown tokens comes first.
        length: Numbers per text for "int".
        standardize: How texts are standardised first.
        split: How texts are split into tokens.
        ngrams: Lengths of runs that are tokens, or none for single tokens.
    """

    output: str
    tokens: tuple[str, ...]
    weights: tuple[float, ...] = ()
    length: int = 0
    standardize: str | None = None
    split: str = SPLIT[0]
    ngrams: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Features per text."""
        return self.length if self.output == "int" else len(self.tokens) + 1

    def features(self, name: str) -> tuple[str, ...]:
        """Returns the names of a column's features."""
        if self.output == "int":
            return tuple(f"{name}[{place}]" for place in range(1, self.length + 1))
        return tuple(f"{name}:{token}" for token in (UNKNOWN, *self.tokens))


# Learning ----------------------------------------------------------------------------------------


def learn_text(column: Mapping[str, Any], keep: np.ndarray, spec: TextSpec, arg: str) -> TextRule:
    """Learns the rule of a column of texts, with the vocabulary of the training rows.

    Args:
        column: `{name, kind, values, levels}`, see `columns`.
        keep: Mask of the training rows.
        spec: The options.
        arg: The user's name for the data, for messages.

    Raises:
        DataError: if the training rows have no text, or no text with a token; names the column.
    """
    values = np.asarray(column["values"]).reshape(-1)[keep]
    counts = count_codes({**column, "values": values}, arg, imputed=True)[1:]
    used = np.flatnonzero(counts)
    if not len(used):
        raise nothing_observed(column["name"], arg)
    texts, counts = _texts(column)[used], counts[used]
    tokens = _learn_tokens(texts, counts, spec)
    if not tokens:
        problem = "has no token in its training rows: no vocabulary can be learned."
        hint = "Drop the column, or split and standardise its texts otherwise."
        raise column_fault(column["name"], arg, problem, hint)
    rule = TextRule(
        spec.output,
        tokens,
        standardize=spec.standardize,
        split=spec.split,
        ngrams=spec.ngrams or (),
    )
    if spec.output == "tf_idf":
        weights = _learn_weights(replace(rule, output="multi_hot"), texts, counts)
        return replace(rule, weights=weights)
    if spec.output == "int":
        return replace(rule, length=spec.sequence_length or _longest(rule, texts))
    return rule


def _learn_tokens(texts: np.ndarray, counts: np.ndarray, spec: TextSpec) -> tuple[str, ...]:
    """Returns the most frequent tokens; each text counts as often as it occurs."""
    require_feature("text")
    rows, tf = np.repeat(np.arange(len(texts)), counts), runtime.reader()
    with tf.device("/CPU:0"):
        # Keras would learn the weights of "tf_idf" text by text, 1 ms each.
        layer = _make_layer(spec, "int" if spec.output == "int" else "count", spec.max_tokens)
        for block in row_blocks(len(rows), _text_bytes(texts)):
            layer.update_state(texts[rows[block]])
        try:
            layer.finalize_state()
        except tf.errors.InvalidArgumentError:  # Keras' own "[UNK]" was the only token
            return ()
        return tuple(layer.get_vocabulary(include_special_tokens=False))


def _learn_weights(rule: TextRule, texts: np.ndarray, counts: np.ndarray) -> tuple[float, ...]:
    """Returns Keras' inverse document frequencies; unknown tokens get the mean of the others."""
    having = np.zeros(len(rule.tokens))
    for block in row_blocks(len(texts), _row_bytes(rule, texts)):
        having += counts[block] @ vectorise(rule, texts[block])[:, 1:]
    weights = np.log(1 + counts.sum() / (1 + having)).astype(np.float32)
    return tuple(float(weight) for weight in (weights.mean(), *weights))


def _longest(rule: TextRule, texts: np.ndarray) -> int:
    """Returns the largest number of tokens in a text.

    A layer without a length pads a block of texts to its longest.
    """
    row_bytes = 8 * max(map(len, texts)) * max(1, len(rule.ngrams)) + _text_bytes(texts)
    blocks = row_blocks(len(texts), row_bytes)
    return max(vectorise(rule, texts[block]).shape[1] for block in blocks)


# Applying ----------------------------------------------------------------------------------------


def encode_text(
    rule: TextRule, column: Mapping[str, Any], out: np.ndarray, arg: str, *, imputed: bool
) -> None:
    """Writes a column's features into `out` (float32), one row per value.

    Args:
        rule: The column's rule.
        column: The texts.
        out: Rows first, `rule.width` columns.
        arg: The user's name for the data, for messages.
        imputed: Whether texts may be missing; a missing text becomes the empty text.

    Raises:
        DataError: if texts are missing and `imputed` is false; names the column.
    """
    count_codes(column, arg, imputed=imputed)
    all_texts = _texts(column)
    codes = spread_codes(column, np.arange(len(all_texts), dtype=np.int32))
    order = np.argsort(codes, kind="stable")
    used, starts = np.unique(codes[order], return_index=True)
    texts, ends = all_texts[used], np.append(starts, len(order))
    for block in row_blocks(len(used), _row_bytes(rule, texts)):
        encoded = vectorise(rule, texts[block])
        places = order[ends[block.start] : ends[block.stop]]
        for part in row_blocks(len(places), encoded.itemsize * rule.width):
            rows = places[part]
            out[rows] = encoded[np.searchsorted(used[block], codes[rows])]


def vectorise(rule: TextRule, texts: np.ndarray) -> np.ndarray:
    """Returns the features of different texts (float32), one row per text."""
    with runtime.reader().device("/CPU:0"):
        values = np.asarray(build_layer(rule)(texts)).astype(np.float32)
    return values * np.array(rule.weights, np.float32) if rule.weights else values


@lru_cache(maxsize=16)
def build_layer(rule: TextRule) -> Any:
    """Builds the Keras layer of a rule; `vectorise()` applies the weights."""
    mode = "count" if rule.output == "tf_idf" else rule.output
    # As objects, because a NumPy string array stores every token at the length of the longest.
    vocabulary = np.array(rule.tokens, dtype=object)
    return _make_layer(
        rule, mode, vocabulary=vocabulary, output_sequence_length=rule.length or None
    )


def _make_layer(
    of: TextSpec | TextRule, mode: str, max_tokens: int | None = None, **more: Any
) -> Any:
    return runtime.keras().layers.TextVectorization(
        max_tokens,
        standardize=of.standardize,
        split=of.split,
        ngrams=of.ngrams or None,
        output_mode=mode,
        **more,
    )


def _texts(column: Mapping[str, Any]) -> np.ndarray:
    """Returns the different texts, then the empty text for missing values."""
    return np.array([*column["levels"], ""], dtype=object)


def _text_bytes(texts: np.ndarray) -> int:
    return CHARACTER_BYTES * (1 + sum(map(len, texts)) // max(1, len(texts)))


def _row_bytes(rule: TextRule, texts: np.ndarray) -> int:
    return 8 * rule.width + _text_bytes(texts)  # Keras counts in int64
