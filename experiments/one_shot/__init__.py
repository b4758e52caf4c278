"""The one-shot paper."""
