"""Proofreading: spelling, grammar and tics of every page."""
