"""The command ``rank-by-rank``: everything to do with the course besides reading it."""
