"""Lesson 14: a project of the learner's own, from a prediction to a report."""
