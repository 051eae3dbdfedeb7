"""One network more, for a run that goes on: `argosy add runs/interrupted examples/interrupted_more.py`."""

from interrupted import study_of

study = study_of(128)
