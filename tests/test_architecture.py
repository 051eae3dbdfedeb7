"""The tree is the architecture: imports go one way, nouns need no torch, optional packages live in one file each."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import argosy
from argosy.running.doctor.machine_checks import WANTED_VERSIONS

PACKAGE = Path(argosy.__file__).parent
TIERS = [
    {"errors", "wording", "bindings"},
    {"spelling"},
    {"requirements", "labels"},
    {"files", "json_values", "system", "traces"},
    {"stopping", "cluster", "events", "diagnosis", "intervals", "tracking"},
    {"study", "settings", "profiles", "packs", "commands", "feeder_commands", "plans", "ranking"},
    {"fold", "members", "repetitions", "resampling"},
    {"leg_results", "report"},
    {"failures"},
    {"planning", "tuning"},
    {"stream"},
    {"training"},
    {"running", "ensembling"},
    {"views", "output", "loading"},
    {"planning_cli", "steering_cli", "doctor_cli"},
    {"api"},
    {"demo", "adapters"},
    {"reporting_cli"},
    {"cli"},
    {"__main__"},
]
NOUNS = set().union(*TIERS[:7]) | {"planning", "tuning"}
TORCH_FREE = NOUNS | {"cli", "loading", "reporting_cli", "steering_cli", "doctor_cli", ""}
OPTIONAL = {
    "pandas",
    "plotly",
    "highspy",
    "optuna",
    "sqlalchemy",
    "ray",
    "lightning",
    "mlflow",
    "wandb",
    "torchmetrics",
    "sklearn",
    "PIL",
    "transformers",
    "IPython",
}


def imports() -> list[tuple[Path, str, str, bool]]:
    """(file, part of the package that it belongs to, imported module, whether at module level)."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        part = path.relative_to(PACKAGE).with_suffix("").parts[0].removesuffix("__init__")
        tree = ast.parse(path.read_text())
        top = set(map(id, tree.body))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += [(path, part, alias.name, id(node) in top) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: absolute imports only"
                names = [f"argosy.{a.name}" for a in node.names] if node.module == "argosy" else [node.module]
                found += [(path, part, str(name), id(node) in top) for name in names]
    return found


def tier(part: str) -> int:
    return next(number for number, parts in enumerate(TIERS) if part in parts)


def test_every_file_has_a_tier() -> None:
    parts = {part for _, part, _, _ in imports()} - {""}
    assert parts <= set().union(*TIERS)


def test_imports_go_one_way() -> None:
    for path, part, module, _ in imports():
        if not module.startswith("argosy.") or part == "":
            continue
        other = module.split(".")[1]
        if other == part or not any(other in parts for parts in TIERS):
            continue
        assert tier(other) <= tier(part), f"{path} imports {module}"


def test_optional_packages_are_imported_in_one_file_each() -> None:
    users: dict[str, set[Path]] = {}
    for path, _, module, _ in imports():
        users.setdefault(module.split(".")[0], set()).add(path)
    for package in OPTIONAL:
        assert len(users.get(package, set())) <= 1, package


def test_nouns_do_not_import_torch() -> None:
    for path, part, module, top in imports():
        if part in TORCH_FREE and top:
            assert module.split(".")[0] != "torch", path


def test_who_asks_or_tells_a_run_does_not_wait_for_torch() -> None:
    """`argosy status`, `argosy report` and `argosy stop` need none."""
    needed = "argosy.cli, argosy.running.directory.loading, argosy.running.directory.inbox, argosy.views.tables, argosy.views.endings"
    words = [sys.executable, "-c", f"import sys, {needed}; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(words, check=False).returncode == 0


def test_files_are_opened_as_plain_data_by_a_torch_that_keeps_to_it() -> None:
    for folder in (PACKAGE, PACKAGE.parent / "benchmarks", PACKAGE.parent / "examples"):
        for path in folder.rglob("*.py"):
            for call in re.findall(r"torch\.load\((.*)", path.read_text()):
                assert "weights_only=True" in call, path
    needed = re.search(r'"torch>=([\d.]+)"', (PACKAGE.parent / "pyproject.toml").read_text())
    assert needed is not None
    assert needed[1] == WANTED_VERSIONS["torch"] == "2.10"


def test_importing_argosy_and_help_are_instant() -> None:
    program = "import sys, argosy, argosy.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_no_module_has_the_name_of_a_public_function() -> None:
    names = {path.stem for path in PACKAGE.iterdir()}
    functions = {name for name in argosy.__all__ if name.islower()}
    assert not names & functions


def test_public_names() -> None:
    assert argosy.__all__ == [
        "ArgosyError",
        "Data",
        "MaxEpochs",
        "MaxSamples",
        "MaxSeconds",
        "MaxSteps",
        "Member",
        "Plateau",
        "Report",
        "Search",
        "Study",
        "Target",
        "accuracy",
        "bootstrap",
        "fit",
        "from_huggingface",
        "from_lightning",
        "grid",
        "kfold",
        "load",
        "plan",
        "replicate",
        "train",
        "tune",
    ]
    assert all(hasattr(argosy, name) for name in argosy.__all__)


def test_no_drawers_for_odds_and_ends() -> None:
    drawers = {"utils", "common", "core", "base", "manager", "registry", "constants", "helpers", "misc"}
    assert not {path.stem for path in PACKAGE.rglob("*.py")} & drawers
