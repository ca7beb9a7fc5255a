"""Benchmarks: one file each."""
