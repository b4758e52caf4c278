"""What decides an audit's scores, as data: importing it starts no JAX."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Setting:
    """All that decides a run's score, but for the data; frozen, and hashed by the store."""

    model: str = "fcnn"
    adversary: str = "gc_s"
    gc_s_noisy: bool = False
    gc_s_per_step: bool = True
    gc_s_simulations: int = 4
    dimension: int = 0
    learning_rate: float = 0.1
    clipping_norm: float = 1.0
    noise_multiplier: float = 4.0
    batch_size: int = 400
    steps: int = 250
    periodicity: int = 1
    optimizer: str = "sgd"
    clipping: str = "book_keeping"
    precision: str = "float32"
    unknown_initialisation: bool = False
    seed: int = 0

    @property
    def insertions(self) -> int:
        """Steps at which the canary is inserted."""
        return self.steps // self.periodicity
