"""What is measured and trained on."""
