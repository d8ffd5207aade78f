"""What all others stand on: MPI itself, types, errors, sleeping."""
