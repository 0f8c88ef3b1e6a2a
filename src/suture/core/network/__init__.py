"""A model cut wherever one tensor passes: tracing, cuts, exact segments, the frozen copy and its untrained twin."""
