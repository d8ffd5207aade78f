"""Deadlines, deaths, and what MPI's errors mean."""
