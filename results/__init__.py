"""The SQL record of every run."""
