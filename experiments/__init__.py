"""The commands of this repository, the papers' sweeps, benchmarks and example programs."""
