"""Late devices whose steps can be captured, on which all processes of `benchmarks/gpu_all.py --rehearse` run.

Copies are late and steps take no time (see `late`); a captured step is a tape of torch's operators (see `replays`).
"""

import late
import replays

from argosy.training.device import recorders

__all__ = ["late"]

recorders.RECORDERS["late"] = replays.TapeRecorder
