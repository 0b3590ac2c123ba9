"""The one seam to SQLite: columns in, columns out."""
