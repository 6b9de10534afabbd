"""Two encoders as one model: pair_config · pair_tokenizer · pair_network · four_bits · pair_checkpoint."""
