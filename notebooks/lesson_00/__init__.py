"""All that belongs to lesson 00 alone: its text, exercises, judges and wrong answers."""
