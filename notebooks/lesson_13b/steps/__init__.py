"""One training, written for each framework; serial.py is what the others are compared with."""
