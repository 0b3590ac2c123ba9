"""Answers about files that did not change since they were given: taken from the user's cache."""
