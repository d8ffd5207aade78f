"""All that belongs to lesson 03 alone: its text, exercises, judges and wrong answers."""
