"""One module of checks for each lesson, read by the catalogue."""
