"""Files of models: found by name, checked and read."""
