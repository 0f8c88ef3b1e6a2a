"""What everything may use and what knows of nothing else: errors, validation, seeds, hashing, atomic files, sizes."""
