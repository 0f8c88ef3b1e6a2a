"""Studies, networks and complexity as figures, on the terminal, in the report and as pages."""
