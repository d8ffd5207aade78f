"""Grades collected notebooks: ``rank-by-rank grade SUBMISSIONS --lessons 01-05 --out results``.

A submission goes through these modules, from the top down:

===================== ===========================================================================
:mod:`.submissions`   which notebooks of which learner are in the folder
:mod:`.answers`       the cells of a notebook that count, and the definitions that they need
:mod:`.one_notebook`  judges the answers of one notebook in processes of its own, and ends them
:mod:`.processes`     finds, bounds and ends those
:mod:`.worker`        what runs there: a cluster, the answers, the checks of the course
:mod:`.rubric`        points for what the checks have found
:mod:`.outcomes`      what was found, kept so that a second run goes on from there
:mod:`.formats`       files for Gradescope, Moodle, Canvas, GitHub and GitLab
:mod:`.page`          a page for the teacher
===================== ===========================================================================

``docs/grading.md`` is for the teacher, and describes what is not trusted and the known limits.
"""
