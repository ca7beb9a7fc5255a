"""The small data the project ships."""
