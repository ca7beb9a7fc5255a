"""Statistics of accuracies and comparisons."""
