"""The command line: a file for each command or group of commands, with its options and its run."""
