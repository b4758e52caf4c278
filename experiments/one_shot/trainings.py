"""Federated trainings that are audited, as data."""

import dataclasses
from typing import NamedTuple

from audit.settings.federated import FederatedSetting


class Trainings(NamedTuple):
    """Clients and a model under audit: how they are trained, noise multipliers, numbers of repetitions,
    trainable parameters, and seconds of a training on two cores. counterpart: the paper's."""

    label: str
    counterpart: str
    setting: FederatedSetting
    noises: tuple[float, ...]
    repetitions: tuple[int, ...]
    dimension: int
    seconds: float

    def at(self, noise: float, repetitions: int = 1) -> FederatedSetting:
        """The audit with so much noise and so many rounds a canary."""
        return dataclasses.replace(self.setting, noise_multiplier=noise, repetitions=repetitions)

    def plain(self, noise: float) -> FederatedSetting:
        """Training without canaries: of a single one that of run 0 is out. The server's learning rate makes
        up for its mean over fewer clients, so that clients and noise move the model equally far."""
        one = self.at(noise)
        mean, bare = (one.cohort + 0.5 * canaries / one.rounds for canaries in (one.canaries, 1))
        rate = round(one.learning_rate * bare / mean, 6)
        return dataclasses.replace(one, canaries=1, observe="final", learning_rate=rate)


class Splits(NamedTuple):
    """Figure 4: experiments of one run with all canaries against several with their share of them each."""

    trainings: Trainings
    experiments: int
    runs: int = 10

    def one(self, noise: float) -> FederatedSetting:
        """All canaries in one run."""
        return self.trainings.at(noise)

    def several(self, noise: float) -> FederatedSetting:
        """Their share of them a run."""
        fewer = self.trainings.setting.canaries // self.runs
        return dataclasses.replace(self.one(noise), canaries=fewer)
