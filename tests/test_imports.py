"""The import graph of src/ogc: one direction, no cycle, no late imports but of optional packages, no name twice.

A name in an ALLOWED set is an exception that remains to be removed. Remove it from the set with its cause.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
LAYERS = [
    "given_label kernels",
    "losses",
    "clipping",
    "models noise data rival_label",
    "training",
    "engine audit report plot predict",
    "benchmark compare demo export",
    "integrations cli",
]
"""Packages and modules, each of which may import those on the same line and above. Names with _ are leaves."""
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names.split()}
OWN_MODULES_LOADED_LATE = {"ogc", "ogc.cli.app"}
"""They import public names and commands on first use."""

ALLOWED_UPWARDS = {"ogc.training.session -> ogc.engine.graphs"}
ALLOWED_IN_A_CYCLE: set[str] = set()
ALLOWED_LATE = """
ogc.audit.apply ogc.cli ogc.cli.audit ogc.cli.bench ogc.cli.bench_tables ogc.cli.compare ogc.cli.demo ogc.cli.export
ogc.cli.figures ogc.cli.noise ogc.cli.predict ogc.cli.tables ogc.cli.train ogc.compare ogc.training.session
"""
ALLOWED_TWICE = """
Cifar ExportOptions Plan Row Rows Snapshot Task apply batches build check checked class_indices columns compare demo
draw_accuracy export group headline jobs_of load name_of page ranks read read_tensors recipes_of run sentences
summary table train write write_metrics write_tensors
"""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


TREES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SRC.rglob("*.py"))}


def nodes(tree: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the nodes that run, and whether they run late, in a function. Types are not imported when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and "Not" not in ast.dump(node.test):
            continue
        late = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield node, late
        yield from nodes(node, late)


def imports(module: str) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a module imports, and whether it does so late."""
    package = SRC.joinpath(*module.split("."), "__init__.py").exists()
    parts = module.split(".") if package else module.split(".")[:-1]
    for node, late in nodes(TREES[module]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                [*parts[: len(parts) - node.level + 1], *filter(None, [node.module])] if node.level else [node.module]
            )
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                yield (whole if whole in TREES else ".".join(base)), late


GRAPH = {module: {found for found, _ in imports(module) if found in TREES} - {module} for module in TREES}


def layer(module: str) -> int | None:
    """Return the layer of a module; None for the package itself and for leaves."""
    part = f"{module}.".split(".")[1]
    return None if not part or part.startswith("_") else LAYER_OF[part]


def test_imports_point_one_way():
    found = {
        f"{module} -> {other}"
        for module, others in GRAPH.items()
        for other in others
        if (here := layer(module)) is not None and (there := layer(other)) is not None and there > here
    }
    assert sorted(found - ALLOWED_UPWARDS) == []


def test_kernels_are_a_leaf():
    for module, others in GRAPH.items():
        if module.startswith("ogc.kernels"):
            assert all(other.startswith("ogc.kernels") or other == "ogc.given_label" for other in others), module


def reachable(start: str) -> set[str]:
    found, left = set(), [start]
    while left:
        for other in GRAPH[left.pop()] - found:
            found.add(other)
            left.append(other)
    return found


def test_there_is_no_cycle():
    """Not even one that a late import hides. The package itself imports on first use only."""
    assert sorted({module for module in TREES if module in reachable(module)} - ALLOWED_IN_A_CYCLE) == []


def test_only_optional_packages_are_imported_late():
    own_or_standard = sys.stdlib_module_names | {"ogc"}
    found = {
        module
        for module in TREES.keys() - OWN_MODULES_LOADED_LATE
        for other, late in imports(module)
        if late and other.partition(".")[0] in own_or_standard
    }
    assert sorted(found - set(ALLOWED_LATE.split())) == []


def test_no_public_name_is_defined_twice():
    places = defaultdict(list)
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    twice = {
        name: modules for name, modules in places.items() if len(modules) > 1 and name not in ALLOWED_TWICE.split()
    }
    assert twice == {}


@pytest.mark.parametrize("name", sorted({module.split(".")[1] for module in TREES if module.count(".")}))
def test_every_package_has_a_layer(name):
    assert name in LAYER_OF or name.startswith("_")
