"""Render results and Traces as text, JSON, CSV, HTML pages, and pictures."""
