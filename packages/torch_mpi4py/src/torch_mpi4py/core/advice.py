"""The advice in error texts on what to do after a failure.

A program that offers an easier way may replace these sentences at any time: an engine of a
notebook's cluster, say, whose user has a button for it.
"""

START_AGAIN = (
    "Make a new group on every rank: dist.destroy_process_group(), then "
    "dist.init_process_group(...)."
)
"""After a group has failed, while all ranks live."""

GO_ON = "The others can continue without it: call torch_mpi4py.shrink() on each of them."
"""After a death, under an MPI with fault tolerance."""

RESTART = "Start the program again."
"""Where nothing else helps."""
