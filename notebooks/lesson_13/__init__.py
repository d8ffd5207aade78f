"""Lesson 13: the same training under other launchers, on other machines."""
