"""What ranks record about themselves, and how it is read; needs no MPI."""
