"""The training loop: gradients, optimiser, schedule, checkpoints, logs, and the model card."""
