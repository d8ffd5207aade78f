"""Shows a teacher who is stuck: ``rank-by-rank class FOLDER``.

Learners' kernels write the records of :mod:`course_lib.teaching.class_record`. :mod:`.reading`
turns them into a class and ignores all other files. :mod:`.page` makes the teacher's page, and
:mod:`.serving` shows it on this machine only.
"""
