"""Comparison of this installation with recorded values of the released code."""
