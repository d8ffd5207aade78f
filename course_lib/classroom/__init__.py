"""Shows a teacher who is stuck: ``rank-by-rank class FOLDER``.

Learners' kernels write what :mod:`course_lib.teaching.class_record` says. :mod:`.reading` makes a
class of it and ignores all other files. :mod:`.page` is what the teacher sees, and
:mod:`.serving` shows it to this machine alone.
"""
