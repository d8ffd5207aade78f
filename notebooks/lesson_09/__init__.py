"""All that belongs to lesson 09 alone: its text, exercises, judges and wrong answers."""
