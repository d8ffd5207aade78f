"""Mutation testing of the checks: which wrong answers do they call right?"""
