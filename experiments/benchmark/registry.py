"""The table of all estimators in the benchmark, by name."""

from experiments.benchmark import ours, peers, published

_RECORDS = (*ours.ESTIMATORS, *peers.ESTIMATORS, *published.ESTIMATORS)
ESTIMATORS = {record.name: record for record in _RECORDS}
