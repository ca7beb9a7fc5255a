"""Job kinds: train, generate, score."""
