"""Late devices whose steps can be captured: what `benchmarks/gpu_all.py --rehearse` runs on, in all processes of its runs.

Copies are late and steps take no time, as `late` has it; a captured step is a tape of torch's operators, as `replays` has it.
"""

import late
import replays

from argosy.training.device import recorders

__all__ = ["late"]

recorders.RECORDERS["late"] = replays.TapeRecorder
