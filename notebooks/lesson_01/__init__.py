"""All that belongs to lesson 01 alone: its text, exercises, judges and wrong answers."""
