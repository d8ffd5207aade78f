"""What ranks write of themselves, and what is read from it: no MPI."""
