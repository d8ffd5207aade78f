"""All that belongs to lesson 06 alone: its text, exercises, judges and wrong answers."""
