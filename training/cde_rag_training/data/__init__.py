"""Training pairs: readers, the prepared folder of arrays, and the steps that make it."""
