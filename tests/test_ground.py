"""The ground: what is declared agrees with itself, and the house keeps its order."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "snapref"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = sorted(PACKAGE.rglob("*.py"))

ON_COLAB = {
    "torch", "numpy", "PIL", "safetensors", "transformers", "tokenizers", "diffusers", "accelerate",
    "huggingface_hub", "matplotlib", "ipywidgets", "anywidget", "traitlets", "IPython", "tqdm",
}  # fmt: skip
# These never run on Colab: the command line with each room's commands, and the two that write the notebooks.
HERE_ONLY = ("snapref/cli.py", "/commands.py", "snapref/lab/publish.py", "snapref/lab/stubs.py")

# Higher rooms import lower ones, never the other way; equal rooms may know each other.
FLOOR = {
    "config": 0, "anima": 1, "world": 1, "files": 2, "reference": 3, "sampling": 4, "training": 4,
    "rivals": 5, "lab": 5, "evaluation": 6, "cli": 7,
}  # fmt: skip


def requirements() -> list[str]:
    return PROJECT["dependencies"] + [r for extra in PROJECT["optional-dependencies"].values() for r in extra]


def imports(path: Path) -> list[str]:
    """Returns the full name of every module that a file imports, at its top or inside a function."""
    package = ["snapref", *path.relative_to(PACKAGE).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(above + ([node.module] if node.module else []))
            found += [f"snapref.{alias.name}" for alias in node.names] if module == "snapref" else [module]
    return found


def room(path_or_module: str) -> str:
    parts = re.split(r"[/.]", path_or_module)
    return parts[1] if len(parts) > 1 else ""


def test_environment_has_the_names_and_floors_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    listed = next(entry["pip"] for entry in environment if isinstance(entry, dict))
    assert [line for line in listed if not line.startswith("-")] == requirements()
    assert "python" + PROJECT["requires-python"] in environment


@pytest.mark.parametrize("line", requirements())
def test_pyproject_states_floors_and_constraints_meet_them(line):
    requirement = Requirement(line)
    assert {s.operator for s in requirement.specifier} == {">="}, f"{line} is more than a floor"
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    version = pins.get(canonicalize_name(requirement.name))
    assert version, f"constraints.txt has no version of {requirement.name}"
    assert version in requirement.specifier


def test_makefile_installs_the_torch_of_the_constraints():
    pin = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
    assert f"$(INSTALL) {pin}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_what_colab_has_and_only_downwards(path):
    name = path.relative_to(ROOT).as_posix()
    here = room(name).removesuffix(".py")
    for module in imports(path):
        top = module.split(".")[0]
        if top == "snapref":
            there = room(module)
            if here in FLOOR and there in FLOOR and here != there:
                assert FLOOR[there] <= FLOOR[here], f"{name} imports {module}, which stands above it"
            if module.endswith(".commands"):
                assert here == "cli" or name.endswith("/commands.py"), f"{name} imports the command line"
            if here == "world":
                assert there in ("world", "config"), f"{name} imports {module}; world stands on config alone"
        elif top not in sys.stdlib_module_names and not name.endswith(HERE_ONLY):
            assert top in ON_COLAB, f"{name} imports {top}, which a stock Colab lacks"


def test_importing_snapref_loads_nothing_heavy():
    heavy = {"torch", "transformers", "diffusers", "matplotlib", "typer"}
    code = f"import snapref, sys; sys.exit(str({heavy} & set(sys.modules) or ''))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert not result.stderr.strip()


def test_every_room_is_a_package_so_that_it_is_installed():
    folders = {path.parent for path in MODULES}
    assert not [folder.name for folder in folders if not (folder / "__init__.py").exists()]


def test_shipped_weights_stay_small():
    files = [path for path in (PACKAGE / "weights").rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files) / 1e6
    assert total <= 60, f"snapref/weights has {total:.1f} MB; at most 60"


@pytest.mark.parametrize("page", ["README.md", "snapref/README.md", "data_samples/README.md"])
def test_links_and_commands_of_a_page_exist(page):
    path = ROOT / page
    if not path.exists():
        pytest.skip(f"{page} is not written")
    text = path.read_text()
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text):
        assert (path.parent / target).exists(), f"{page} links to {target}, which is not there"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


def test_every_make_target_is_told_in_the_readme():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) - {"clean"}
    told = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert targets <= told


def test_folders_that_the_readmes_commands_write_are_not_for_git():
    written = {"runs", *re.findall(r"--out (\w+)/", (ROOT / "README.md").read_text())}
    ignored = (ROOT / ".gitignore").read_text().split()
    assert "data" in written and [f"/{folder}/" for folder in written if f"/{folder}/" not in ignored] == []


def test_ci_runs_the_readmes_test_command():
    script = ROOT / ".ci" / "run"
    assert script.read_text().rstrip().endswith("exec make test")
    assert script.stat().st_mode & 0o100, ".ci/run is not executable"


def examples() -> list[int]:
    """What a property test is given."""
    found = []

    @settings(max_examples=200)
    @given(st.integers(0, 10**6))
    def collect(number):
        found.append(number)

    collect()
    return found


def test_examples_of_a_property_test_do_not_depend_on_what_was_imported(tmp_path, monkeypatch):
    before = examples()
    (tmp_path / "numbers_here.py").write_text(f"numbers = {[*range(1000, 1900)]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("numbers_here")
    assert examples() == before and len(before) == 200


def test_tests_run_in_one_thread():
    assert torch.get_num_threads() == 1


def test_version_is_the_same_everywhere():
    version = PROJECT["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"@v{version}" in (ROOT / "notebooks/src/setup_cell.py").read_text()
