"""The ratchet: what it counts, and that a figure may only fall."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

from tests.house import (
    BEGIN,
    END,
    PROJECT,
    Crossing,
    find_excesses,
    find_offences,
    find_raised,
    lower,
    read_ignores,
    shrink_ignores,
)
from tests.house_counts import (
    COUNTS,
    DENSITY,
    PACKAGE,
    VAGUE_NAMES,
    Place,
    Source,
    count_standing,
    find_chains,
    find_imports_past_faces,
    find_uncommented,
    find_vague_names,
    read_sources,
    run_ruff,
    worst_places,
)

ROW = {name: 0 for name in COUNTS} | {DENSITY: 6.0}


def figures(**changes: float) -> dict[str, float]:
    """Return the figures of one room, with `changes` by count, blanks and colons as underscores."""
    names = {re.sub(r"\W+", "_", name): name for name in COUNTS}
    return ROW | {names[name]: value for name, value in changes.items()}


def house(**rooms: dict[str, float]) -> dict[str, dict[str, dict[str, float]]]:
    """Return a `house.json` with these rooms and one command."""
    return {"rooms": rooms, "commands": {"plan": {"functions": 100}}}


def sources_of(folder: Path, **files: str) -> list[Source]:
    """Write and read a package; a file `a__b` is `b.py` of the room `a`."""
    for name, text in files.items():
        path = folder / "gnnplace" / (name.replace("__", "/", 1) + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_sources(folder / "gnnplace")


def test_a_figure_above_its_row_fails_and_names_the_place():
    places = {VAGUE_NAMES: [Place("plans", "gnnplace/plans/a.py", 7, "own")] * 3}
    assert find_excesses(
        {"plans": figures(vague_names=3)}, {}, house(plans=ROW), places
    ) == [
        "plans: vague names 3, house.json allows 0; most of it: gnnplace/plans/a.py:7 own 3"
    ]
    assert not find_excesses(
        {"plans": figures(vague_names=3)},
        {},
        house(plans=ROW | {VAGUE_NAMES: 3}),
        places,
    )
    assert (
        "does not have this room"
        in find_excesses({"launch": ROW}, {}, house(plans=ROW), {})[0]
    )


def test_a_busy_machine_may_cross_a_few_functions_more():
    allowed = house(plans=ROW)
    assert not find_excesses({}, {"plan": {"functions": 103}}, allowed, {})
    assert find_excesses({}, {"plan": {"functions": 104}}, allowed, {}) == [
        "plan: crosses 104 functions, house.json allows 100"
    ]


def test_density_may_rise_a_little_where_sparse_code_is_taken_out():
    allowed = house(plans=ROW)
    assert not find_excesses({"plans": ROW | {DENSITY: 6.05}}, {}, allowed, {})
    assert find_excesses({"plans": ROW | {DENSITY: 6.06}}, {}, allowed, {}) == [
        "plans: tokens a code line 6.06, house.json allows 6"
    ]


def test_lowering_writes_what_fell_and_raises_nothing():
    allowed = house(plans=figures(vague_names=5, D401=2), report=ROW)
    lowered = lower(
        allowed, {"plans": figures(vague_names=3, D401=4)}, {"plan": {"functions": 120}}
    )
    assert lowered == house(plans=figures(vague_names=3, D401=2))


def test_a_figure_raised_by_hand_fails_unless_its_files_changed_rooms():
    before = house(plans=figures(D401=5), report=figures(D401=1))
    assert not find_raised(house(plans=figures(D401=4), launch=figures(D401=2)), before)
    assert find_raised(
        house(plans=figures(D401=5), report=figures(D401=2)), before
    ) == ["D401: house.json was raised from 6 to 7"]
    denser = house(plans=figures(D401=5) | {DENSITY: 6.01}, report=figures(D401=1))
    assert find_raised(denser, before) == [
        "plans: tokens a code line of house.json was raised from 6 to 6.01"
    ]


def test_tokens_are_counted_on_lines_with_code_alone(tmp_path):
    text = '"""Text."""\n\n# why\ndef f(x):\n    """Text."""\n    return x  # why\n'
    (source,) = sources_of(tmp_path, a__b=text)
    assert count_standing([source])["a"] == {
        "files": 1,
        "lines": 6,
        "code lines": 2,
        "tokens": 8,
    }


def test_ruff_counts_what_pyproject_ignores(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.ruff.lint]\nignore = ["PLR0913", "SLF001"]\n'
    )
    text = "def f(a, b, c, d, e, f, g, h):\n    return a._b\n"
    offences = run_ruff(sources_of(tmp_path, a__b=text), tmp_path / "gnnplace")
    assert offences["PLR0913"] == [Place("a", "gnnplace/a/b.py", 1, "f", 8)]
    assert offences["SLF001"] == [Place("a", "gnnplace/a/b.py", 2, "f")]
    assert not offences["D401"]


def test_an_import_from_inside_another_room_goes_past_its_face(tmp_path):
    text = "from gnnplace.a import f\nfrom gnnplace.a.b import g\nfrom gnnplace.c.e import h\n"
    sources = sources_of(
        tmp_path, a__b="", c__d=text + "def f():\n    from gnnplace.a.b import g\n"
    )
    assert find_imports_past_faces(sources) == [
        Place("c", "gnnplace/c/d.py", 2, "gnnplace.a.b.g")
    ]


def test_packages_are_the_faces_of_a_room_that_has_nothing_else(tmp_path):
    text = "from gnnplace.a.b import f\nfrom gnnplace.a.b.c import g\n"
    files = {"a____init__": "", "a__b/__init__": "", "a__b/c": "", "d__e": text}
    past = find_imports_past_faces(sources_of(tmp_path, **files))
    assert [place.name for place in past] == ["gnnplace.a.b.c.g"]
    past = find_imports_past_faces(sources_of(tmp_path, a__k=""))
    assert [place.name for place in past] == ["gnnplace.a.b.f", "gnnplace.a.b.c.g"]


def test_vague_names_are_bound_ones(tmp_path):
    text = "def f(own):\n    found, count = own\n    return [found for found in (now := [])]\n"
    places = find_vague_names(sources_of(tmp_path, a__b=text))
    assert sorted((place.line, place.name) for place in places) == [
        (2, "found"),
        (3, "found"),
        (3, "now"),
    ]


def test_a_long_function_needs_a_comment_that_is_no_directive(tmp_path):
    body = "    x = 1\n" * 40
    sources = sources_of(
        tmp_path,
        a__b=f"def f():\n{body}",
        a__c=f"def g():\n    x = 1  # why\n{body}",
        a__d=f"def h():\n    x = 1  # noqa: A001\n{body}",
        a__e=f'def k():\n    """Text.\n\n    {"More." * 9}\n    """\n{body[10:]}',
    )
    assert [(place.name, place.value) for place in find_uncommented(sources)] == [
        ("f", 41),
        ("h", 42),
    ]


def test_a_parameter_is_followed_through_functions_that_only_hand_it_on(tmp_path):
    verbs = (
        "from gnnplace.a.kit import work\n"
        "def plan(model, budget):\n    return work(budget, budget=model)\n"
        "def top(model):\n    return work(model)\n"
        "def double(model):\n    return work(model) or model\n"
    )
    kit = (
        "class Kit:\n"
        "    def run(self, model, budget):\n        return self._run(budget, model=model)\n"
        "    def _run(self, budget, model):\n        return work(model, budget)\n"
        "def work(model, budget=1):\n    return use(model)\n"
        "def use(model):\n    return model + 1\n"
    )
    chains = find_chains(sources_of(tmp_path, a__kit=kit, b__verbs=verbs))
    assert [chain.steps for chain in chains] == [
        ("Kit.run(model)", "Kit._run(model)", "work(model)", "use(model)"),
        ("Kit.run(budget)", "Kit._run(budget)", "work(budget)"),
        ("Kit._run(model)", "work(model)", "use(model)"),
        ("plan(budget)", "work(model)", "use(model)"),
        ("top(model)", "work(model)", "use(model)"),
    ]


def test_the_worst_places_come_first():
    places = [
        Place("a", "a.py", line, name)
        for line, name in enumerate(["own", "own", "made"], 1)
    ]
    assert worst_places(VAGUE_NAMES, [Place("a", "b.py", 1, "rest"), *places], 1) == [
        Place("a", "a.py", 1, "own", 3)
    ]
    long = [Place("a", "a.py", 1, "f", 41), Place("a", "a.py", 9, "g", 60)]
    assert worst_places("PLR0913", long, 1) == [Place("a", "a.py", 9, "g", 60)]


def test_the_list_of_ignored_rules_only_shrinks():
    table = "[tool.ruff.lint.extend-per-file-ignores]"
    project = f'{table}\n"a.py" = ["ANN401", "D401"]\n"b.py" = ["D401"]\n{END}'
    offences = {"a.py": ["D401", "SLF001"], "c.py": ["D401"]}
    shrunk = shrink_ignores(f"{BEGIN}\n{project}", offences)
    assert read_ignores(shrunk) == {"a.py": ["D401"]}
    assert (
        read_ignores(shrink_ignores(f"[tool.ruff.lint]\n{BEGIN}\n{END}", offences))
        == offences
    )


def test_every_file_with_an_ignored_rule_breaks_it():
    by_path = [
        Source(path, path.parent.name, "", ast.Module([], []), [])
        for path in PACKAGE.rglob("*.py")
    ]
    broken = find_offences(run_ruff(by_path))
    ignored = read_ignores(PROJECT.read_text(encoding="utf-8"))
    unneeded = {
        file: sorted(set(rules).difference(broken.get(file, ())))
        for file, rules in ignored.items()
    }
    assert not any(unneeded.values()), "python -m tests.house --ignores"


def test_crossed_are_own_functions_and_not_imports():
    module = str(PACKAGE / "made_up.py")
    code = compile(
        "def outer():\n    inner()\ndef inner():\n    len('')\nouter()\n",
        module,
        "exec",
    )
    names: dict[str, object] = {}
    crossing = Crossing()
    sys.setprofile(crossing)
    exec(code, names)  # as an import: nothing of it counts
    sys.setprofile(None)
    assert crossing.figures() == {"files": 0, "functions": 0, "depth": 0}
    sys.setprofile(crossing)
    names["outer"]()
    sys.setprofile(None)
    assert crossing.figures() == {"files": 1, "functions": 2, "depth": 2}


OWNERS = ("simulation/transfer.py", "costs/")
DIVIDED = re.compile(
    r"/ [\w.()\[\]]*(bandwidth|_shared|_together)|[sS]izes?\[\w+\] \* \w+\.pace"
)
ALLOWED = {
    "problem/formats/attributed.py": "bytes of a device's own memory, which no link carries",
}


def code_of(path: Path) -> str:
    """A module without its docstrings and comments."""
    return ast.unparse(_Bare().visit(ast.parse(path.read_text(encoding="utf-8"))))


class _Bare(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | ast.Pass:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def test_bytes_are_divided_by_bandwidth_where_transfers_are_owned_alone():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(OWNERS) and DIVIDED.search(code_of(path)):
            found[name] = DIVIDED.search(code_of(path)).group()
    assert set(found) == set(ALLOWED), found


MODELS = ("zoo/", "bench/models/")
"""Networks whose layers have the names that their papers give them."""


def test_no_two_classes_share_a_name():
    named = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(MODELS):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    named[node.name].append(name)
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}
