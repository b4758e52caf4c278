"""The repository's commands."""
