"""What everything may use and what knows of nothing else: errors, files written whole, names, plugins, seeds, sizes."""
