"""The published design, where context and text attend to each other: config · backbones · network · checkpoint."""
