"""The small library that the lessons of "Rank by Rank" stand on.

Its parts; imports point downwards only:

- ``course_lib.cluster``: where ranks live, the names of :mod:`ipyranks`,
- ``course_lib.parallel``, ``course_lib.training``: what they compute,
- ``course_lib.grading``: what a teacher makes of submitted notebooks,
- ``course_lib.teaching``: what the learner sees,
- ``course_lib.doctor``: what on a machine would fail.

Below all of them are ``ipyranks``, the ranks behind a notebook, and ``torch_mpi4py``, how ranks
talk; above them are the lessons, each in a room of its own: ``notebooks/lesson_03``, imported as
``rank_by_rank.lesson_03``. Importing this package imports none of them.
"""

__version__ = "0.1.0"
