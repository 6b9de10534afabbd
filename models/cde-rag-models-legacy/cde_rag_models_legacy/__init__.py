"""Models that earlier versions of cde-rag bundled, in folders by their names."""
