"""All that belongs to lesson 13b alone: its text, the frameworks' scripts, exercises and judges."""
