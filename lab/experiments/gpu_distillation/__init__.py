"""Distillation of cde-base-1 into the size of cde-mini-1 on one GPU, in minutes.

The plan is in lab/pages/distillation.md. The commands share a folder on the machine with the GPU: texts embeds
the pool with the teacher, vectors is stage 1, contexts are stages 2 and 3, and choice evaluates on development sets.
Schedules follow the clock, so that a run fits a machine that is lent for minutes.
"""
