"""An audit by ranks of a black box that only has `fit` and `predict_proba`, like a scikit-learn classifier.

./run.sh python experiments/examples/ranks_black_box.py page.html

The classifier is a softmax regression whose fitted weights get noise (output perturbation). Put your own in
its place, private or not; the lines that matter are marked with RANKS.
"""

import sys
from typing import Self

import numpy as np
from numpy.typing import NDArray

import audit

RUNS = 20
CANARIES = 10
FRESH = 10_000
EXAMPLES = 100
FEATURES = 500
CLASSES = 2
NOISE = 0.02

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


class NoisyClassifier:
    """A softmax regression with noise on its weights, which shows its users probabilities alone."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def fit(self, features: Array, labels: Labels) -> Self:
        """Fits the weights to features (n, FEATURES) and labels (n,), adds noise to them, and returns itself.

        The fit is 100 steps of gradient descent on the mean cross entropy, from 0, at learning rate 1.
        """
        targets = np.eye(CLASSES)[labels]  # (n, CLASSES): 1 at the label, else 0
        self._weights = np.zeros((features.shape[1], CLASSES))
        for _ in range(100):
            residuals = targets - self.predict_proba(features)
            self._weights += features.T @ residuals / len(features)  # the gradient, times -1
        self._weights += NOISE * self._rng.normal(size=self._weights.shape)
        return self

    def predict_proba(self, features: Array) -> Array:
        """Returns the probabilities (n, CLASSES) of features (n, FEATURES)."""
        logits = features @ self._weights
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def draw_examples(rng: np.random.Generator, number: int) -> tuple[Array, Labels]:
    """Draws random features (number, FEATURES) and labels (number,), which a model can only memorise."""
    return rng.normal(size=(number, FEATURES)), rng.integers(0, CLASSES, number)


def score(classifier: NoisyClassifier, features: Array, labels: Labels) -> Array:
    """Returns the log odds (n,) that the classifier gives each example's label."""
    probabilities = classifier.predict_proba(features)
    label_probabilities = probabilities[np.arange(len(labels)), labels]
    tiny = 1e-300  # against the logarithm of 0
    return np.log(label_probabilities + tiny) - np.log(1 - label_probabilities + tiny)


def main(*page: str) -> None:
    """Trains and scores the runs, prints the bounds, and writes a page if its path is given.

    A canary's score is ranked among those of fresh examples, with which no model was trained. Lines marked
    RANKS are needed for an audit of a training loop of your own.
    """
    rng = np.random.default_rng(0)
    features, labels = draw_examples(rng, EXAMPLES)
    scores = []
    fresh = []
    for _ in range(RUNS):
        # RANKS: other canaries in every run
        canary_features, canary_labels = draw_examples(rng, CANARIES)
        classifier = NoisyClassifier(rng).fit(
            np.concatenate([features, canary_features]),
            np.concatenate([labels, canary_labels]),
        )
        scores.append(score(classifier, canary_features, canary_labels))
        fresh.append(score(classifier, *draw_examples(rng, FRESH)))  # RANKS: drawn after the run
    # Rows are in the order of the runs: the bound then holds wherever they stop.
    result = audit.bounds(audit.ranks(scores, fresh, in_order=True), name="a black box")
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
