"""Waiting: devices without work, streams, launches, synchronisation."""
