"""The one idea: what the backend costs, measured beside gloo and raw MPI in the same ranks."""
