"""The foundation of the other folders: MPI itself, types, errors, sleeping."""
