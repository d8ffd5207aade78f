"""The one idea: a small library that the lessons of "Rank by Rank" stand on.

Sub-packages, lowest layer first; imports point downwards only:

- ``torch_mpi4py``: how ranks talk (a ``torch.distributed`` backend over MPI),
- ``course_lib.cluster``: where ranks live (engines behind a notebook),
- ``course_lib.parallel``, ``course_lib.training``: what they compute,
- ``course_lib.teaching``: what the learner sees.

Importing this package imports none of them.
"""

__version__ = "0.1.0"
