"""Free text as features.

To add another encoder of text, write a class like ``TfIdf`` and add it to ``encoder.KINDS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._extras import extra
from .cells import Cells, Texts
from .columns import Category, Features

MOST_WORDS = 500
MOST_ROWS_FITTED = 20_000  # more change neither the words nor their frequencies, and take longer
TEXT_SCALE = 3.0  # norm of the features of a text: with 1 they are too weak next to other columns, see docs/log.md


@dataclass(frozen=True)
class TfIdf:
    """TF-IDF by scikit-learn over the most frequent words of the training rows."""

    kind: ClassVar = "tfidf"
    words: tuple[str, ...]
    idf: tuple[float, ...]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> TfIdf | None:
        """Fit the words to the training rows, evenly spaced ones if there are many; ``None`` if no word repeats."""
        vectorizer = _vectorizer(max_features=MOST_WORDS, min_df=2)
        try:
            vectorizer.fit(texts[:: -(-len(texts) // MOST_ROWS_FITTED)])
        except ValueError:
            return None
        return cls(tuple(vectorizer.get_feature_names_out().tolist()), tuple(vectorizer.idf_.tolist()))

    @property
    def use(self) -> str:
        return f"{len(self.words)} words"

    @cached_property
    def _vectorizer(self) -> Any:
        vectorizer = _vectorizer(vocabulary=list(self.words))
        vectorizer.idf_ = np.array(self.idf)
        return vectorizer

    def features(self, texts: Sequence[str]) -> Features:
        features: Features = self._vectorizer.transform(texts).astype(np.float32).toarray()
        return TEXT_SCALE * features


@dataclass(frozen=True)
class Text:
    """Features of free text, and one-hot of the most frequent values if they repeat, as short answers do."""

    kind: ClassVar = "text"
    encoder: TfIdf
    values: Category | None

    @property
    def use(self) -> str:
        repeated = "" if self.values is None else f" and {len(self.values.values)} values"
        return f"text, {self.encoder.use}{repeated}"

    def features(self, cells: Cells) -> Features:
        assert isinstance(cells, Texts)
        words = self.encoder.features([*cells.values, ""])[cells.codes]
        return words if self.values is None else np.concatenate([words, self.values.features(cells)], axis=1)

    def odd(self, cells: Cells) -> NDArray[np.bool_]:
        return np.zeros(len(cells), bool)


def _vectorizer(**options: Any) -> Any:
    with extra("cli", "Text columns need scikit-learn", "sklearn"):
        from sklearn.feature_extraction.text import TfidfVectorizer
    return TfidfVectorizer(sublinear_tf=True, strip_accents="unicode", **options)
