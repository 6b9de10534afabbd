"""Benchmarks: each module is a program that measures one thing and prints it, or writes a table of lab/tables."""
