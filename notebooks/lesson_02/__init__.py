"""All that belongs to lesson 02 alone: its text, exercises, judges and wrong answers."""
