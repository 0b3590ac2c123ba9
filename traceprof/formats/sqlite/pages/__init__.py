"""Columns of plain tables, decoded from the pages of the file."""
