"""All that belongs to lesson 07 alone: its text, exercises, judges and wrong answers."""
