"""All that belongs to lesson 04 alone: its text, exercises, judges and wrong answers."""
