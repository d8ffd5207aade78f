"""The room of lesson 11: its text, its exercises, and all that belongs to it alone."""
