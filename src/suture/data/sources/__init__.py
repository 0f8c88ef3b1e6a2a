"""Where samples come from: hub ids, folders and tensors, decoded once."""
