"""Measures the backend's costs beside gloo and raw MPI in the same ranks."""
