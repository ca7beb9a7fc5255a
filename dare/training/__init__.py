"""Training loop, rollouts, checkpoints."""
