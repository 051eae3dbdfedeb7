"""Which trials train on, and how far. Pure decisions but for `sampling`, which is Optuna's: no torch, no clock, no processes.

A scheduler is one file with one class that answers the questions of ``scheduler.Scheduler``.
"""
