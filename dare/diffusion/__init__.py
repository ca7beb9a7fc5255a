"""Corruption, likelihoods and block layouts."""
