"""Meetings of ranks, and waits for messages, in which ranks sleep."""
