"""One folder for each run: whole results, locks, plans, and a look at them from outside."""
