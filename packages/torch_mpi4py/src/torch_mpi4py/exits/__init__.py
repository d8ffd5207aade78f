"""How ranks end, and tell the others."""
