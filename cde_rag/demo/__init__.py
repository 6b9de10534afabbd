"""The main job on a corpus that is on every machine: the documentation of the running Python."""
