"""A slow link in place of the machine's own."""
