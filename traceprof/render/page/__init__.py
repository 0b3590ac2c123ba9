"""Provide the parts that all HTML pages share: document, style, tables, and plotly.js."""
