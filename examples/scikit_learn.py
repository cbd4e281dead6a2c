"""Train OGCClassifier, a scikit-learn estimator, on digits with 40 % wrong labels.

pip install ".[sklearn]"
python examples/scikit_learn.py            # a few seconds
python examples/scikit_learn.py --smoke    # a smoke test
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ogc.integrations.sklearn import OGCClassifier


def main(smoke: bool) -> None:
    X, y = load_digits(return_X_y=True)
    X, X_test, true, y_test = train_test_split(X, y, stratify=y, random_state=0)
    rng = np.random.default_rng(0)
    given = np.where(rng.random(len(true)) < 0.4, (true + rng.integers(1, 10, len(true))) % 10, true)

    ours = OGCClassifier(max_iter=2 if smoke else None, random_state=0).fit(X, given)
    print(f"OGCClassifier predicts {ours.score(X_test, y_test):.1%} of the test labels correctly.")
    theirs = make_pipeline(StandardScaler(), MLPClassifier(early_stopping=True, random_state=0))
    if not smoke:
        print(f"MLPClassifier with early stopping: {theirs.fit(X, given).score(X_test, y_test):.1%}")

    worst = ours.label_quality_.argsort()[:100]  # review these labels first
    print(f"Of the hundred labels with the lowest label_quality_, {(given != true)[worst].mean():.1%} are wrong.")
    print(f"Estimated noise rate: {ours.noise_rate_:.1%} (true rate {(given != true).mean():.1%}).")

    with tempfile.TemporaryDirectory() as folder:  # saving does not use pickle
        ours.save(Path(folder) / "digits.safetensors")
        again = OGCClassifier.load(Path(folder) / "digits.safetensors")
    assert (again.predict(X_test) == ours.predict(X_test)).all()
    print("Next: use OGCClassifier in your own pipeline or search, and review labels with a low label_quality_.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="run a smoke test of a few seconds")
    main(parser.parse_args().smoke)
