"""Renderers: results and Traces become text, pages and pictures."""

from __future__ import annotations
