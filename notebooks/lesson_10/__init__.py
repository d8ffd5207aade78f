"""All that belongs to lesson 10 alone: its text, exercises, judges, figures and wrong answers."""
