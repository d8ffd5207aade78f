"""The event log of a rank, and those of its peers."""
