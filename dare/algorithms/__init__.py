"""Post-training algorithms: one file each."""
