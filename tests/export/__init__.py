"""Tests of passing traces on."""
