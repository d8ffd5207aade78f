"""The command ``rank-by-rank``: what one does with the course besides reading it."""
