"""A dict of all estimators in the benchmark, keyed by name."""

from experiments.benchmark import ours, peers, published

ESTIMATORS = {
    estimator.name: estimator
    for estimator in (*ours.ESTIMATORS, *peers.ESTIMATORS, *published.ESTIMATORS)
}
