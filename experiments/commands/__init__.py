"""The commands of the repository."""
