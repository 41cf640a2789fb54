"""Plans' files: version 2 as the format says, anything else refused."""

import copy
import json
import math
import re

import numpy as np
import pytest

from gnnplace.errors import FormatError, MismatchError
from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.reading import check_cluster, plan_from_data
from gnnplace.report.plans import plan_page
from tests.plans.toys import chain, cluster

WORDS = "pp=2,dp=2,tp=2,microbatch_size=1,zero=1,recompute=full,schedule=zero-bubble"
VALUES = (
    None,
    "no such name",
    "",
    7,
    -1,
    -0.5,
    1e30,
    10**30,
    math.nan,
    math.inf,
    True,
    [],
    {},
)
FREE = {  # edits that say nothing wrong: words for people, and figures that nothing contradicts
    "model": ("no such name",),
    "cluster": ("no such name",),
    "cluster_file": (None, "no such name"),
    "claim": ("no such name", ""),
    "environment": (None,),
    "one_stage_bound": (None, 7),
    "lower_bound": (None, 7),
    "fits": (None,),
    "flops": (None, 7),
    "name": ("no such name", None),
    "parts": ({},),
    "placements": ({},),
    "recompute": ({}, 7),
    "regather": (True,),
    "loss": ("sum",),
    "layers": (7,),
    "modules": ([], "no such name"),
    "saved": (None, 7, 10**30),
    **dict.fromkeys(("inputs", "ranks", "frontier", "seconds", "shape"), ([], 7)),
    **dict.fromkeys(("state", "activations", "working", "slack"), (7, 10**30)),
    **dict.fromkeys(("sent", "ends", "interval"), (7,)),
}


@pytest.fixture(scope="module")
def whole():
    """A plan with something in every key."""
    plan = price_given_plan(chain(np.random.default_rng(0), batch=8), cluster(8), WORDS)
    data = plan.to_data()
    data["stages"][0]["placements"] = {
        "s0": ["R", "R", "P:in"],
        "w": ["R", "R", "S0/3"],
    }
    data["inputs"] = [{"name": "x", "shape": [8, 3], "dtype": "float32"}]
    data |= {
        "lower_bound": 0.1,
        "one_stage_bound": 0.2,
        "cluster_file": None,
        "claim": "none",
    }
    return data


def places(data, path=()):
    """Every key and every entry of a list, as a path."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in pairs:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def edited(data, path, value):
    made = copy.deepcopy(data)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def named(path):
    """The last key of a path that is a name."""
    return [key for key in path if isinstance(key, str)][-1]


def refused(data):
    """The line that refuses a file; None where it is read, and then its page can be drawn."""
    try:
        plan = plan_from_data(data, "p.json")
    except FormatError as error:
        line = str(error)
        assert line.startswith("p.json: ")
        assert "\n" not in line
        return "\n" if error.faults else line
    assert "Stages" in plan_page(plan)
    return None


def test_a_plan_is_read_as_it_was_written(whole):
    assert plan_from_data(whole, "p").to_data() == whole
    assert {**whole, "x-mine": 1} != whole
    assert plan_from_data({**whole, "x-mine": 1}, "p").to_data() == whole


def test_every_key_edited_to_nonsense_is_refused_by_its_name(whole):
    """Every key of the file takes each of many values; what is read is what `FREE` says."""
    allowed = []
    for path in places(whole):
        key = named(path)
        for value in VALUES:
            line = refused(edited(whole, path, value))
            if line is not None:
                told = [part for part in path if isinstance(part, str)]
                assert any(part in line for part in told), (path, value, line)
                continue
            old = whole
            for part in path:
                old = old[part]
            if value != old and value not in FREE.get(key, ()):
                allowed.append((path, value))
    assert not allowed


def test_every_key_left_out_or_unknown_is_refused_or_has_a_default(whole):
    for path in places(whole):
        if isinstance(path[-1], int) or "placements" in path:
            continue
        made = copy.deepcopy(whole)
        inner = made
        for key in path[:-1]:
            inner = inner[key]
        inner[f"{path[-1]}x"] = inner.pop(path[-1])
        assert f"{path[-1]}" in refused(made), path


def contradictions():
    """What each says of others, and the words of the line."""
    first = "stages[0]"
    yield (
        "ranks",
        lambda p: p.update(ranks=[0, 2]),
        "ranks: [0, 2]: must be numbered from 0 on",
    )
    yield (
        "ranks",
        lambda p: p.update(ranks=[1, 0]),
        "ranks: [1, 0]: schedule 'zero-bubble' has 2",
    )
    yield (
        "ranks",
        lambda p: p.update(ranks=[0, 10**9]),
        "ranks: [0, 1000000000]: must be numbered",
    )
    yield (
        "schedule",
        lambda p: p.update(schedule="v"),
        "schedule 'v' has 2 stages on ranks [0]",
    )
    yield (
        "schedule",
        lambda p: p.update(schedule="9f"),
        "schedule: '9f': unknown; use one of 1f1b",
    )
    yield (
        "batch",
        lambda p: p.update(batch=7),
        "batch: 7 is no multiple of microbatch_size",
    )
    yield "huge", lambda p: p.update(batch=10**8), "more than can be run"
    yield (
        "names",
        lambda p: p["stages"][0]["devices"][1].__setitem__(0, ["gpu:0", "gpu:1"]),
        (f"{first}.devices: 'gpu:0' is there 2 times"),
    )
    yield (
        "twice",
        lambda p: p["stages"][1].update(devices=p["stages"][0]["devices"]),
        ("stages[1].devices: 'gpu:0' is of rank 0 already"),
    )
    yield (
        "outer",
        lambda p: p["stages"][0].update(devices=[[["gpu:0"], ["gpu:1"]]]),
        f"{first}.devices: one axis of shards is the inner one",
    )
    yield (
        "unlike rows",
        lambda p: p["stages"][0].update(devices=[[["gpu:0", "gpu:1"], ["gpu:2"]]]),
        f"{first}.devices: replicas must have as many outer shards each",
    )
    yield (
        "border",
        lambda p: p["stages"][0].update(border="examples,tokens"),
        f"{first}.border: 'examples,tokens' is of two axes of shards",
    )
    yield (
        "members",
        lambda p: p["stages"][1].update(members=p["stages"][0]["members"]),
        ("stages[1].members: 's0' is in stages[0], too"),
    )
    yield (
        "parts",
        lambda p: p["stages"][0].update(
            regather=True, devices=[[["cpu:0"]]], placements={}
        ),
        (f"{first}.regather: one shard gathers nothing again"),
    )
    yield (
        "again",
        lambda p: p["stages"][0]["recompute"].update(kind="none"),
        (f"{first}.recompute: kind 'none' with"),
    )
    yield (
        "again",
        lambda p: p["stages"][0]["recompute"].update(modules=["s9"]),
        (f"{first}.recompute.modules: 's9' is none of the stage's members"),
    )
    yield (
        "word",
        lambda p: p["stages"][0]["placements"].update(w=["R", "R", "anything"]),
        (f"{first}.placements.w: 'anything' is no placement"),
    )
    yield "memory", lambda p: p.update(memory={}), "memory: lacks 'gpu:0'"
    yield (
        "memory",
        lambda p: p["memory"].update({"gpu:9": p["memory"]["gpu:0"]}),
        ("memory.gpu:9: is among no stage's devices"),
    )
    yield (
        "memory",
        lambda p: p["memory"]["gpu:0"].update(activations=0.0),
        ("memory.gpu:0.activations: 0 MB, and actions[0] keeps"),
    )
    yield (
        "times",
        lambda p: p.update(interval=[2.0, 1.0]),
        "interval: [2, 1]: the lower end",
    )
    yield (
        "times",
        lambda p: p.update(step_time=1e-9),
        "step_time: 1e-09 s is not in the interval",
    )
    yield (
        "times",
        lambda p: p.update(lower_bound=1e8),
        "lower_bound: 1e+08 s is above the step",
    )
    yield (
        "times",
        lambda p: p.update(step_time=None),
        "interval: must be there with step_time",
    )
    yield "parts", lambda p: p["parts"].update(compute=1.0), "parts: add up to"
    yield (
        "file",
        lambda p: p.update(cluster="cpu:8", cluster_file="a.yaml"),
        "cpu:8 has none",
    )
    yield (
        "sent",
        lambda p: p.update(sent=[0.1, 0.1]),
        "sent, ends: have 2 and 2 numbers for 1 cuts",
    )
    yield (
        "input",
        lambda p: p["inputs"][0].update(shape=[4, 3]),
        "inputs[0].shape: has 4 examples",
    )
    yield (
        "input",
        lambda p: p["inputs"][0].update(shape=[8, 10**9, 9]),
        "[8, 1000000000, 9]: is too",
    )
    yield (
        "input",
        lambda p: p["inputs"].append(p["inputs"][0]),
        "inputs[..].name: 'x' is there 2",
    )
    yield "digits", lambda p: p["actions"][0].append("0F" + "9" * 5000), "is no action"
    yield "action", lambda p: p["actions"][0].append("0F0"), "0F0 is there 2 times"
    yield (
        "precision",
        lambda p: p.update(precision="8-true"),
        "precision: '8-true': unknown",
    )


@pytest.mark.parametrize(
    ("edit", "told"), [(edit, told) for _, edit, told in contradictions()]
)
def test_keys_that_contradict_each_other_are_refused(whole, edit, told):
    made = copy.deepcopy(whole)
    edit(made)
    assert told in refused(made)


def test_a_thousand_mutated_files_are_read_or_refused_in_a_line(whole):
    """A second or two of the processor: it reads a thousand files."""
    rng, found = np.random.default_rng(0), []
    all_places = list(places(whole))
    for _ in range(1000):
        made = whole
        for _ in range(int(rng.integers(1, 4))):
            path = all_places[rng.integers(len(all_places))]
            try:
                made = edited(made, path, VALUES[rng.integers(len(VALUES))])
            except (
                TypeError,
                KeyError,
                IndexError,
            ):  # an earlier mutation took its place
                continue
        found.append(refused(made))
    assert sum(line is not None for line in found) > 900


def test_a_cluster_must_be_there_with_the_plan_s_devices(whole):
    def of(**keys):
        return plan_from_data({**whole, **keys}, "p").file

    check_cluster(of(cluster="nvlink-a100-8"), "p")
    names = {f"gpu:{k}": f"cpu:{k}" for k in range(8)}
    here = re.sub("gpu:[0-7]", lambda name: names[name[0]], json.dumps(whole))
    for name in ("auto", "cpu", "cpu:8"):
        check_cluster(
            plan_from_data({**json.loads(here), "cluster": name}, "p").file, "p"
        )
    with pytest.raises(FormatError, match="cluster 'cpu:7' has no 'cpu:7'"):
        check_cluster(
            plan_from_data({**json.loads(here), "cluster": "cpu:7"}, "p").file, "p"
        )
    with pytest.raises(FormatError, match="p: cluster: 'toy' is no preset"):
        check_cluster(of(), "p")
    with pytest.raises(
        FormatError, match=r"p: cluster_file: none\.yaml: cannot be read"
    ):
        check_cluster(of(cluster_file="none.yaml"), "p")
    with pytest.raises(
        FormatError, match=r"p: stages\[0\].devices: cluster 'cpu:8' has no 'gpu:0'"
    ):
        check_cluster(of(cluster="cpu:8"), "p")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("fingerprint", "0" * 64, "plan: fingerprint: it is of another model"),
        ("batch", 16, "plan: batch: it is for 16, not 8"),
        ("optimizer", "adamw", "plan: optimizer: it is for 'adamw', not 'sgd'"),
        ("cluster", "other", "plan: cluster: it is for 'other', not 'toy'"),
    ],
)
def test_a_plan_of_something_else_is_not_priced(key, value, told):
    model, machine = chain(np.random.default_rng(0), batch=8), cluster(8)
    plan = price_given_plan(model, machine, "microbatch_size=1")
    data = plan.to_data() | {key: value}
    if key == "batch":
        data["actions"] = [[f"0{kind}{m}" for m in range(16) for kind in "FB"]]
    with pytest.raises(MismatchError, match=re.escape(told)):
        price_given_plan(model, machine, plan_from_data(data, "p"))
