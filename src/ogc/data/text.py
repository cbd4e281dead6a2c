"""Free text as features. To add another encoder of text, write a class like ``TfIdf`` and add it to ``KINDS``."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .cells import Cells, Texts
from .columns import Category, Features, Marks

MOST_WORDS = 500
MOST_ROWS_FITTED = 20_000  # more of them hardly change the words and their frequencies, and take longer
TEXT_SCALE = 3.0  # norm of the features of a text: with 1 they are too weak next to other columns, see docs/log.md
END = "\0"  # of a text, in a list of words
WORD = re.compile(rf"\w\w+|{END}")


@dataclass(frozen=True)
class TfIdf:
    """TF-IDF of the most frequent words of the training rows, as scikit-learn's ``TfidfVectorizer`` computes it.

    Each text has the norm TEXT_SCALE, and before that (1 + log count) idf for each word that occurs in it, with
    idf = 1 + log((1 + texts) / (1 + texts with the word)).
    """

    kind: ClassVar = "tfidf"
    words: tuple[str, ...]
    idf: tuple[float, ...]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> TfIdf | None:
        """Fit the words to the training rows, evenly spaced ones if there are many; ``None`` if no word repeats."""
        texts = texts[:: -(-len(texts) // MOST_ROWS_FITTED)]
        tokens = _tokens(texts)
        vocabulary = sorted({*tokens} - {END})
        _, words, counts = _count(tokens, vocabulary)
        texts_with, total = np.bincount(words), np.bincount(words, counts)
        repeated = np.flatnonzero(texts_with > 1)
        chosen = np.sort(
            repeated[(-total[repeated]).astype(np.int64).argsort()[:MOST_WORDS]]
        )  # ties as in scikit-learn
        idf = 1 + np.log((1 + len(texts)) / (1 + texts_with[chosen]))
        return cls(tuple(vocabulary[i] for i in chosen), tuple(idf.tolist())) if len(chosen) else None

    @property
    def use(self) -> str:
        return f"{len(self.words)} words"

    def features(self, texts: Sequence[str]) -> Features:
        """Encode texts: (n,) -> (n, words)."""
        rows, words, counts = _count(_tokens(texts), self.words)
        weights = (1 + np.log(counts)) * np.array(self.idf)[words]
        norm = np.sqrt(np.bincount(rows, weights**2, minlength=len(texts)))
        features = np.zeros((len(texts), len(self.words)), np.float32)
        features[rows, words] = TEXT_SCALE * (weights / norm[rows]).astype(np.float32)
        return features


@dataclass(frozen=True)
class Text:
    """Features of free text, and one-hot of the most frequent values if they repeat, as short answers do."""

    kind: ClassVar = "text"
    encoder: TfIdf
    values: Category | None

    @property
    def use(self) -> str:
        return f"text, {self.encoder.use}{'' if self.values is None else f' and {len(self.values.values)} values'}"

    def features(self, cells: Cells) -> Features:
        assert isinstance(cells, Texts)
        words = self.encoder.features([*cells.values, ""])[cells.codes]
        return words if self.values is None else np.concatenate([words, self.values.features(cells)], axis=1)

    def odd(self, cells: Cells) -> Marks:
        return np.zeros(len(cells), bool)


def _tokens(texts: Sequence[str]) -> list[str]:
    """Return the words of all texts in lower case without accents, and END after those of each text."""
    joined = "".join(text.replace(END, " ") + END for text in texts).lower()
    if not joined.isascii():
        joined = unicodedata.normalize("NFKD", joined)
        joined = joined.translate({ord(mark): None for mark in set(joined) if unicodedata.combining(mark)})
    return WORD.findall(joined)


def _count(tokens: Sequence[str], vocabulary: Sequence[str]) -> tuple[NDArray[np.int64], ...]:
    """Count the words of each text: its row, the index of the word, and the count, for each pair that occurs."""
    size = len(vocabulary)
    place = {word: i for i, word in enumerate((*vocabulary, END))}
    words = np.array([place.get(token, -1) for token in tokens], np.int64)
    rows, known = (words == size).cumsum(), (words >= 0) & (words < size)
    pairs, counts = np.unique(rows[known] * size + words[known], return_counts=True)
    return *np.divmod(pairs, max(size, 1)), counts
