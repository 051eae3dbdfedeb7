"""Random studies over the whole API: valid ones must equal a plain PyTorch loop, invalid ones must be refused in a sentence.

Prints the ingredients of each study that is wrong; the same ``--seed`` makes the same studies. ``--seconds`` ends it
earlier.
"""

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import integers
from measuring import hardware

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from fuzzing import Asked, differences, invalid, refusal, valid

CHUNK = 100
"""Studies of one generator, which keeps those that it has made in memory."""
ONE_IN = 5
"""One study in this number is invalid."""


def wrong_of(asked: Any, folder: Path) -> list[str]:
    """Return what is wrong with one study, and its ingredients."""
    words, run = (repr(asked), None) if isinstance(asked, Asked) else asked
    try:
        found = differences(asked, folder) if run is None else refusal(run, folder)
    except Exception as error:  # whatever a valid study raises is a finding too
        found = [f"raises {type(error).__name__}: {error}"]
    return [*found, words] if found else []


def campaign(first: int, studies: int, until: float, told: Callable[[list[str]], None]) -> int:
    """Run up to this number of studies, chunk by chunk; return how many there was time for."""
    done = 0
    torch.set_num_threads(1)
    both = integers(1, ONE_IN).flatmap(lambda number: invalid() if number == ONE_IN else valid())
    how = settings(
        max_examples=CHUNK,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )

    def one(asked: Any) -> None:
        nonlocal done
        if done >= studies or time.monotonic() > until:
            return
        folder = Path(tempfile.mkdtemp(prefix="argosy-fuzz-"))
        try:
            told(wrong_of(asked, folder))
        finally:
            shutil.rmtree(folder)
        done += 1

    number = first
    while done < studies and time.monotonic() < until:
        seed(number)(how(given(both)(one)))()
        number += 1
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    wrong: list[str] = []

    def told(found: list[str]) -> None:
        if found:
            wrong.append("\n".join(found))
            print("\n".join(found), end="\n\n", file=sys.stderr, flush=True)

    started = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):  # what runs print
        done = campaign(arguments.seed, arguments.studies, started + arguments.seconds, told)
    seconds = time.monotonic() - started
    if arguments.json:
        figures = {"studies": done, "seconds": seconds, "wrong": wrong}
        targets = [{"what": "studies that are wrong", "value": len(wrong), "target": "== 0", "holds": not wrong}]
        print(json.dumps({"hardware": hardware(), "seed": arguments.seed, "result": figures, "targets": targets}))
    print(f"{done} studies in {seconds:.0f} s ({done / seconds:.1f} a second): {len(wrong)} wrong", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
