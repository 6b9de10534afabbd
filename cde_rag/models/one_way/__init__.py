"""One-way models: the second stage attends to the context, which never attends to a text."""
