"""All that belongs to lesson 08 alone: its text, exercises, judges and wrong answers."""
