"""The static site and its statistics."""
