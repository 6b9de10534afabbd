"""The multilingual model of cde-rag, in a folder by its name."""
