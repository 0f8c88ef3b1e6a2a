"""Records, the tidy table, and its readings: by depth, onset, curve, matrix, explanation."""
