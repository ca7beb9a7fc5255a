"""Scorers: pure functions from text to verdict."""
