"""All that belongs to lesson 10c alone: its text, exercises, judges and wrong answers."""
