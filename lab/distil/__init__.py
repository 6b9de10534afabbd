"""Distillation of a large model's embeddings: training_texts · teacher_shards · target_axes · student · curve · run."""
