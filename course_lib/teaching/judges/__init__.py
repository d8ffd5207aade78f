"""Judges that several lessons use; those for only one lesson are in its room.

A judge is given what happened on every rank, the same on every rank, and raises
:class:`~course_lib.teaching.exercise.WrongAnswer` with the name of the mistake it recognises. The
message is in ``mistakes.md``: here for several lessons, and in a lesson's room for its own.
"""
