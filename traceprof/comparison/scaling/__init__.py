"""Measure how throughput grows with the number of devices, and where efficiency is lost."""
