"""Records, the tidy table, and what is read from it: by depth, onset, curve, matrix, explanation."""
