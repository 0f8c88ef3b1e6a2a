"""The command line: one file a command, which holds its options and its run."""
