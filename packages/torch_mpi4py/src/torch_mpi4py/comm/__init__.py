"""The communicator for mpi4py's own calls, with deadlines."""
