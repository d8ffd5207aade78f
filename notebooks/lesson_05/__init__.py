"""All that belongs to lesson 05 alone: its text, exercises, judges and wrong answers."""
