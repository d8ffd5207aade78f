"""Message counts, and clock offsets between ranks."""
