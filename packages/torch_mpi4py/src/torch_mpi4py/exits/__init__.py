"""How ranks end, and notify the others."""
