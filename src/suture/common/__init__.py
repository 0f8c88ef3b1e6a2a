"""Helpers for every room that import from none: errors, files written whole, names, plugins, seeds, sizes."""
