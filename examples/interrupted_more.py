"""One more network for a live run: `argosy add runs/interrupted examples/interrupted_more.py`."""

from interrupted import study_of

study = study_of(128)
