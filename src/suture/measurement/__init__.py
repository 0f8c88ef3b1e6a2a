"""From a trial to numbers: trials, controls and plans, scores with intervals, indices, and tables."""
