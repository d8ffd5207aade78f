"""The small library behind the lessons of "Rank by Rank".

Its parts; imports point downwards only:

- ``course_lib.cluster``: where ranks live, the names of :mod:`ipyranks`,
- ``course_lib.parallel``, ``course_lib.training``: the algorithms and the training,
- ``course_lib.grading``: grades for submitted notebooks,
- ``course_lib.teaching``: everything that a learner sees,
- ``course_lib.doctor``: checks of a machine before a workshop.

Below all of them are ``ipyranks``, the ranks behind a notebook, and ``torch_mpi4py``, how ranks
talk; above them are the lessons, each in a room of its own: ``notebooks/lesson_03``, imported as
``rank_by_rank.lesson_03``. Importing this package imports none of them.
"""

__version__ = "0.1.0"
