"""Contrastive losses and the objective of an update."""
