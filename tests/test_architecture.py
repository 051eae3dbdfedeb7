"""Tests of the package's structure: imports go one way, modules that only describe need no torch, one file imports each optional package."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import argosy
from argosy.running.doctor.machine import WANTED_VERSIONS

PACKAGE = Path(argosy.__file__).parent
ROOMS = [
    "version",
    "bindings",
    "errors",
    "readings",
    "disk",
    "described",
    "averages",
    "stopping",
    "ragged",
    "cluster",
    "study",
    "settings",
    "profiles",
    "plans",
    "protocol",
    "designs",
    "results",
    "tracking",
    "planning",
    "tuning",
    "stream",
    "data",
    "training.device",
    "training.optim",
    "training.member",
    "training.programs",
    "training.choice",
    "training.trainer",
    "export",
    "ensembling",
    "running.launch",
    "running.directory",
    "running.hosts",
    "running.watch",
    "running.control",
    "running.search",
    "running.doctor",
    "views",
    "api",
    "adapters",
    "estimators",
    "argosy",
    "cli",
    "__main__",
]
"""Packages in import order: a module imports only from its own room and from those before it."""
TORCH_FREE = {*ROOMS[: ROOMS.index("stream")], "running.watch", "cli", "argosy"}
OPTIONAL = {
    "pandas",
    "matplotlib",
    "plotly",
    "highspy",
    "optuna",
    "sqlalchemy",
    "tensorboard",
    "ray",
    "lightning",
    "mlflow",
    "wandb",
    "torchmetrics",
    "sklearn",
    "PIL",
    "pyarrow",
    "transformers",
    "IPython",
    "safetensors",
    "huggingface_hub",
    "trackio",
}
SLOW = {"torch", "torch._inductor", "numpy", "rich", "psutil", "triton", "difflib"}
"""Packages that only modules that need them load: each takes from 20 ms to seconds."""


def files() -> dict[str, Path]:
    """Return the files of the package's modules by module name."""
    found = {path.relative_to(PACKAGE.parent).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in found.items()}


def room(module: str) -> str:
    """Return the room of a module: its folder; inside `running` and `training`, the folder below."""
    parts = module.split(".")[1:] or ["argosy"]
    deep = parts[0] in ("running", "training") and len(parts) > 1
    return ".".join(parts[:2]) if deep else parts[0]


def imports() -> list[tuple[str, str, str]]:
    """Return all imports as (module, imported module, when: with its module, in a "call" or "never", under ``TYPE_CHECKING``)."""
    found, modules = [], files()
    for module, path in modules.items():
        tree = ast.parse(path.read_text())
        times: dict[ast.AST, str] = {tree: "with"}
        for node in ast.walk(tree):
            checks = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            inside = "call" if isinstance(node, ast.FunctionDef) else "never" if checks else times[node]
            times |= dict.fromkeys(ast.iter_child_nodes(node), inside)
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: absolute imports only"
                parts = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [part if part in modules or part in SLOW else str(node.module) for part in parts]
            found += [(module, name, times[node]) for name in names]
    return found


def circles() -> set[str]:
    """Return the modules that import themselves through others."""
    graph: dict[str, set[str]] = {}
    for module, other, _ in imports():
        graph.setdefault(module, set()).add(other)
    return {module for module in graph if module in _reached(graph, module)}


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached, left = set(), [start]
    while left:
        for other in graph.get(left.pop(), set()) - reached:
            reached.add(other)
            left.append(other)
    return reached


def test_every_file_is_in_a_room() -> None:
    assert {room(module) for module in files()} - {"running", "training"} == set(ROOMS)


def test_imports_go_one_way_from_room_to_room() -> None:
    modules = files()
    for module, other, _ in imports():
        if other in modules and room(module) != room(other):
            assert ROOMS.index(room(other)) < ROOMS.index(room(module)), f"{module} imports {other}"


def test_the_page_of_the_structure_names_every_room() -> None:
    page = (PACKAGE.parent / "docs" / "internals" / "structure.md").read_text()
    assert [name for row in re.findall(r"(?m)^\| (`.*?) \|", page) for name in re.findall(r"`([\w.]+)`", row)] == ROOMS
    (picture,) = re.findall(r"(?ms)^```text\n(.*?)^```", page)
    assert [word for word in picture.split() if word in ROOMS] == ROOMS


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles() == set(), "modules import each other in a circle"


def chain(node: ast.expr) -> list[str]:
    """Return the name and the attributes of ``a.b.c`` as a list, empty for other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := chain(node.value)):
        return [*before, node.attr]
    return []


def test_parts_of_the_driver_do_not_reach_through_each_other() -> None:
    """An expression follows at most two attributes or methods of another object, as ``leg.flotilla.members`` or ``self.run.settings.policy``."""
    for module, path in files().items():
        if room(module) == "running.control":
            for node in ast.walk(ast.parse(path.read_text())):
                names = chain(node) if isinstance(node, ast.Attribute) else []
                assert len(names) - (names[:1] == ["self"]) <= 3, (
                    f"{path}:{getattr(node, 'lineno', 0)}: {'.'.join(names)}"
                )


def test_the_state_of_a_member_is_written_in_one_place() -> None:
    """The member table changes states in `_to`, which only the table calls, and it gives no entry to others."""
    for path in files().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in (
                "_members",
                "_of_state",
                "_meets",
                "_new",
                "_additions",
                "_told_to_stop",
                "_to",
                "_put",
            ):
                assert path.name == "members.py" or chain(node)[-2:-1] != ["members"], path


def test_one_part_of_the_driver_writes_the_journal_and_gives_commands() -> None:
    """Only `carry_out` appends to the journal and sends commands.

    The lists of parts that pass it single events and commands, or that use the pool directly, may only become shorter.
    """
    users: dict[str, set[str]] = {}
    for module, path in files().items():
        if room(module) == "running.control":
            for node in ast.walk(ast.parse(path.read_text())):
                names = chain(node) if isinstance(node, ast.Attribute) else []
                users.setdefault(".".join(names[-2:]), set()).add(path.stem)
    assert users["journal.append"] == users["pool.send"] == {"carry_out"}
    assert users["workers.send"] == {"worker_pool"}
    assert users["carry_out.record"] == {"barriers", "driver", "leg_starts"}
    assert users["carry_out.send"] == {"clones", "driver", "measurements"}
    assert users["pool.feed"] == users["pool.define"] == {"carry_out"}
    assert users["pool.stop_feeding"] | users["pool.probe"] == {"carry_out", "leg_starts"}
    assert users["pool.attach"] | users["pool.give_credit"] == {"carry_out", "measurements"}


def test_no_part_of_the_driver_imports_it() -> None:
    makes = {"argosy.api", "argosy.running.control.profiling"}
    assert {module for module, other, _ in imports() if other == "argosy.running.control.driver"} == makes


def test_a_class_name_means_one_class() -> None:
    names = [
        node.name
        for path in files().values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert {name for name, count in Counter(names).items() if count > 1} == set()


def test_optional_packages_are_imported_in_one_file_each() -> None:
    users: dict[str, set[str]] = {}
    for module, other, _ in imports():
        if module != "argosy.cli.demo":  # imported only by `argosy demo`
            users.setdefault(other.split(".")[0], set()).add(module)
    for package in OPTIONAL:
        assert len(users.get(package, set())) <= 1, package


def _loaded(graph: Mapping[str, set[str]], module: str) -> set[str]:
    """Return what importing a module loads, and the packages that contain it."""
    found, left = set(), [module]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [*graph.get(name, ()), *filter(None, [name.rpartition(".")[0]])]
    return found


def test_imports_in_functions_spare_a_process_something_slow_or_optional() -> None:
    """Outside of the commands, an import in a function loads a slow or optional package that its module does not load."""
    graph: dict[str, set[str]] = {}
    for module, other, when in imports():
        if when == "with":
            graph.setdefault(module, set()).add(other)
    for module, other, when in imports():
        if when == "call" and room(module) != "cli":
            new = _loaded(graph, other) - _loaded(graph, module)
            assert new & (SLOW | OPTIONAL), f"{module} can import {other} at its top"


def test_nouns_do_not_import_torch() -> None:
    for module, other, when in imports():
        if (
            room(module) in TORCH_FREE and when == "with" and module != "argosy.cli.demo"
        ):  # imported only by `argosy demo`
            assert other.split(".")[0] != "torch", module


def test_commands_to_a_run_do_not_import_torch() -> None:
    """`argosy status`, `argosy report` and `argosy stop` import no torch, which would take seconds."""
    needed = "argosy.cli.app, argosy.running.directory.loading, argosy.running.directory.attached, argosy.views.tables"
    words = [sys.executable, "-c", f"import sys, {needed}; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(words, check=False).returncode == 0


def test_the_agent_of_a_node_that_trains_on_cpu_slots_does_not_import_torch() -> None:
    """Only its fork server imports torch, at the same time; on one core two imports would slow each other down."""
    script = """
import sys
from argosy.running.hosts.agent import run_job_process
from argosy.running.launch.discovery import discover
from argosy.settings import Settings
discover(Settings(devices="cpu:1"))
sys.exit("torch" in sys.modules or "numpy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_fork_server_imports_torch_beside_the_command() -> None:
    script = """
import sys
from argosy.running.launch.forkserver import ForkServer
ForkServer.start = classmethod(lambda cls: sys.exit("torch" in sys.modules))
from argosy.cli.app import _launcher
with _launcher("processes"):
    raise AssertionError
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_files_are_opened_as_plain_data_by_a_torch_that_keeps_to_it() -> None:
    for folder in (PACKAGE, PACKAGE.parent / "benchmarks", PACKAGE.parent / "examples"):
        for path in folder.rglob("*.py"):
            for call in re.findall(r"torch\.load\((.*)", path.read_text()):
                assert "weights_only=True" in call, path
    needed = re.search(r'"torch>=([\d.]+)"', (PACKAGE.parent / "pyproject.toml").read_text())
    assert needed is not None
    assert needed[1] == WANTED_VERSIONS["torch"] == "2.10"


def test_importing_argosy_and_help_are_instant() -> None:
    program = "import sys, argosy, argosy.cli.app; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_handlers_of_all_errors_raise_them_again_or_say_why_not() -> None:
    """They stand at the boundaries of processes and threads, to the user's code, and to libraries that raise errors of any type."""
    swallowing = []
    for path in files().values():
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ExceptHandler):
                caught = "BaseException" if node.type is None else ast.unparse(node.type)
                again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
                if re.search(r"\b(Base)?Exception\b|\bUSER_ERRORS\b", caught) and not again:
                    swallowing.append(f"{path}:{node.lineno}")
                    assert "  # " in lines[node.lineno - 1], f"{swallowing[-1]} needs its reason in a comment beside it"
    assert len(swallowing) <= 41, swallowing  # may only become fewer


def test_no_module_has_the_name_of_a_public_function() -> None:
    names = {path.stem for path in PACKAGE.iterdir()}
    functions = {name for name in argosy.__all__ if name.islower()}
    assert not names & functions


def test_public_names() -> None:
    assert argosy.__all__ == [
        "EMA",
        "SWA",
        "ArgosyError",
        "Data",
        "EnsemblePlateau",
        "LastK",
        "MaxEpochs",
        "MaxSamples",
        "MaxSeconds",
        "MaxSteps",
        "Member",
        "Plateau",
        "Ragged",
        "Report",
        "Search",
        "Study",
        "Target",
        "accuracy",
        "attach",
        "bootstrap",
        "distill",
        "fit",
        "from_huggingface",
        "from_lightning",
        "grid",
        "kfold",
        "load",
        "plan",
        "replicate",
        "tabular",
        "train",
        "tune",
    ]
    assert all(hasattr(argosy, name) for name in argosy.__all__)


def test_no_drawers_for_odds_and_ends() -> None:
    drawers = {"utils", "common", "core", "base", "manager", "registry", "constants", "helpers", "misc"}
    assert not {path.stem for path in PACKAGE.rglob("*.py")} & drawers
