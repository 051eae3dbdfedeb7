"""Runs a search under kill -9: every few seconds one of its processes is killed, sometimes the driver, and then the command is repeated.

It must end with the table of an undisturbed search: the same trials, the same epochs, the same losses, bit for bit.
"""

import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from measuring import arguments, finish, target

SEARCH = """
import sys
sys.path.insert(0, {folder!r})
from functools import partial
import argosy
from hyperband_study import SPACE, build, data
search = argosy.Search(build=partial(build, "mlp"), space=SPACE, data=data(), max_epochs={most}, warm={warm},
    objective="val_accuracy", mode="max", packs={packs!r}, scheduler={scheduler!r}, n_trials={trials!r})
"""
TRIALS = {"hyperband": None, "asha": 40, "median": 20, "pbt": 12}
"""Number of trials, by scheduler."""


def searched(folder: Path, name: str, every: float | None, draw: random.Random) -> tuple[list[dict[str, Any]], int]:
    """Return the table of the search in that directory, and how many processes were killed meanwhile."""
    words = f"argosy tune search.py --dir {name} --numerics exact --json --verbose"
    command = [sys.executable, "-m", *words.split()]
    killed = 0
    while True:
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as driver:
            killed += _kill(driver, every, draw) if every is not None else 0
            said, _ = driver.communicate()
        if driver.returncode == 0:
            kept = (
                "trial",
                "status",
                "epochs",
                "val_loss",
                "val_accuracy",
                *("lr", "batch_size", "optimizer", "source"),
            )
            return [{key: row.get(key) for key in kept} for row in json.loads(said)["trials"]], killed
        assert driver.returncode == -signal.SIGKILL, f"the search ended with {driver.returncode}"


def _kill(driver: "subprocess.Popen[str]", every: float, draw: random.Random) -> int:
    """Kill processes until the driver has ended; return how many."""
    killed, last = 0, time.monotonic()
    while driver.poll() is None:
        time.sleep(0.1)
        if time.monotonic() - last > every:
            last = time.monotonic()
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(driver.pid)
                draw.choice([process, *process.children(recursive=True)]).kill()
                killed += 1
    return killed


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--most", type=int, default=27)
    parser.add_argument("--anew", action="store_true", help="let trials begin anew at each rung")
    parser.add_argument("--packs", default="planned")
    parser.add_argument("--scheduler", choices=TRIALS, default="hyperband")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = str(Path(__file__).resolve().parent)
        terms = {"warm": not options.anew, "packs": options.packs, "scheduler": options.scheduler}
        text = SEARCH.format(folder=here, most=options.most, trials=TRIALS[options.scheduler], **terms)
        (folder / "search.py").write_text(text)
        whole, _ = searched(folder, "whole", None, random.Random())
        disturbed, killed = searched(folder, "killed", options.every, random.Random(options.seed))
    print(f"{len(whole)} members, {killed} processes killed")
    held = target("the same table as undisturbed (1: yes)", [float(disturbed == whole)], at_least=1.0)
    finish("search_kills", {"members": len(whole), "killed": killed}, [held], as_json=options.json)


if __name__ == "__main__":
    main()
