"""All that belongs to lesson 10b alone: its text, exercises, judges and wrong answers."""
