"""Ranks meet, and wait for messages, asleep."""
