"""Deadlines, deaths, and the meaning of MPI's errors."""
