"""All that belongs to lesson 12 alone: its text, exercises, judges and wrong answers."""
