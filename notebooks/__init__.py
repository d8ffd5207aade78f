"""The lessons: a room for each (``notebooks.lesson_03``)."""
