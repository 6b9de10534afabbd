"""The published design, whose context and text attend to each other: config · backbones · network · checkpoint."""
