"""The lessons: a room for each (``rank_by_rank.lesson_03``, in ``notebooks/lesson_03``)."""
