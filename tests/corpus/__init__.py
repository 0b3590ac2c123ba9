"""Inputs that once broke something: small, made by us, each with what must come of it."""
