"""Columns of plain tables of a SQLite file, decoded from its pages without SQLite."""
