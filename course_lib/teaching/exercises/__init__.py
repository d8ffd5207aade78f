"""The one idea: one module of checks for each lesson, read by the catalogue."""
