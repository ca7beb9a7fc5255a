"""From a suite manifest to stored cells."""
