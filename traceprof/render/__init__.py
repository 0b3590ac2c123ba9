"""Renderers: results and Traces become text, pages and pictures."""
