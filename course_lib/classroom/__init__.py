"""Shows a teacher who is stuck: ``rank-by-rank class FOLDER``.

Learners' kernels write what :mod:`course_lib.teaching.class_record` says, and :mod:`.reading` makes
a class of it, whatever else lies there. :mod:`.page` is what the teacher sees, and :mod:`.serving`
shows it to this machine alone.
"""
