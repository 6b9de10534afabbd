"""Laboratory: experiments, benchmarks, MTEB and distillation; README.md lists each published figure and its command."""
