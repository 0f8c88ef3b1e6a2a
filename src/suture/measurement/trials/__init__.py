"""From a trial to its measurement; controls, baselines and plans, which make trials."""
