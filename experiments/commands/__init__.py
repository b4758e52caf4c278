"""The commands of the repository. Each module defines flags and a short main."""
