"""Mutation testing of the checks: what do they call right that is wrong?"""
