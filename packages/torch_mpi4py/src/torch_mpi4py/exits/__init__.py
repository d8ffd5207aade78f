"""Ranks come to their ends, and tell the others."""
