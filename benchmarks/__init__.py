"""What the backend costs, measured beside gloo and raw MPI in the same ranks."""
