"""Embedders: texts to unit vectors of one space, in a Context or without one."""
