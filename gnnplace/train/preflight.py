"""Checks a recipe before any slow import, and reports the first mistake in one line.

The YAML files and options of `gnnplace train` are merged as Lightning's command line does it, and
compared with the source of the classes that they name (`train.signatures`). What cannot be read
from the source is left to Lightning's own parser.
"""

from __future__ import annotations

import ast
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gnnplace.errors import InputError, suggestion
from gnnplace.files import read_yaml
from gnnplace.train.signatures import (
    ClassSource,
    Constructor,
    Missing,
    Parameter,
    find_class,
    find_constructor,
    forget_modules,
    is_installed,
    list_bases,
)

KeyPath = tuple[str, ...]
Section = dict[str, Any]
TRAINER = "lightning.pytorch.trainer.trainer.Trainer"
OURS = "gnnplace.train"
SHORT_NAMES: dict[KeyPath, tuple[str, ...]] = {
    ("model",): (OURS,),
    ("data",): (OURS,),
    ("trainer", "callbacks"): (
        "lightning.pytorch.callbacks",
        "gnnplace.train.training_cli",
    ),
    ("trainer", "logger"): ("lightning.pytorch.loggers",),
    ("optimizer",): ("torch.optim",),
    ("lr_scheduler",): ("torch.optim.lr_scheduler", "lightning.pytorch.cli"),
}
"""Modules whose classes may be named without them, by the section."""
KINDS: dict[KeyPath, str] = {("model",): "Learner", ("data",): "LightningDataModule"}
BASES: dict[KeyPath, str] = {
    ("model",): "LightningModule",
    ("data",): "LightningDataModule",
    ("trainer", "callbacks"): "Callback",
    ("trainer", "logger"): "Logger",
}
"""What the class of a section must be derived from; such a class is made by its arguments alone."""
PACKAGES = {
    "CometLogger": ("comet_ml",),
    "DeviceStatsMonitor": ("psutil",),
    "LitLogger": ("litlogger",),
    "MLFlowLogger": ("mlflow",),
    "RichModelSummary": ("rich",),
    "RichProgressBar": ("rich",),
    "TensorBoardLogger": ("tensorboard", "tensorboardX"),
    "WandbLogger": ("wandb",),
}
"""Packages of which one of Lightning's classes needs one."""
RUN_KEYS = (
    "config",
    "seed_everything",
    "threads",
    "trainer",
    "model",
    "data",
    "optimizer",
    "lr_scheduler",
)
COMMAND_KEYS = {
    "fit": ("ckpt_path", "weights_only"),
    "validate": ("ckpt_path", "weights_only", "verbose"),
    "test": ("ckpt_path", "weights_only", "verbose"),
    "predict": ("ckpt_path", "weights_only", "return_predictions"),
    "sweep": (
        "trials",
        "study",
        "storage",
        "folder",
        "space",
        "set",
        "monitor",
        "study_seed",
    ),
}
TYPES = {
    "seed_everything": "bool | int",
    "threads": "int",
    "trials": "int",
    "study_seed": "int",
    "verbose": "bool",
    "weights_only": "bool",
    "return_predictions": "bool",
}
"""Types of the keys at the top that are no classes."""
FOLDERS = ("default_root_dir", "save_dir", "dirpath", "export")
"""Arguments that name folders which a run makes."""
SINGLE = ("32-true", "32")
MIXED = ("16-mixed", "16", "bf16-mixed", "bf16")
EVOLVED = "PolicyModule"  # the base of learners that search without gradients
# Values beside logged ones that Lightning lets checkpoints be chosen by.
ANY_METRIC = ("epoch", "step")
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "None": "null",
}
LISTS = ("list", "List", "Sequence", "Iterable", "tuple", "Tuple", "set")


@dataclass
class TrainingRecipe:
    """The files and options of a command, put together.

    Attributes:
        sections: Keys and values, nested; a class is a mapping with `class_path` and `init_args`.
        sources: What set a value, by its key path: "--threads" or "smoke.yaml: threads".
        is_text: The text of the command line that a value was read from, by its key path.
    """

    sections: dict[str, Any] = field(default_factory=dict)
    sources: dict[KeyPath, str] = field(default_factory=dict)
    is_text: dict[KeyPath, str] = field(default_factory=dict)

    def note(self, path: KeyPath, source: str, text: str | None = None) -> None:
        """Note what set a value, and the text if it is of the command line."""
        plain = _plain(path)
        self.sources[plain] = source
        self.is_text.pop(plain, None)
        if text is not None:
            self.is_text[plain] = text

    def find_source(self, path: KeyPath) -> str:
        """Return the option or the file and key that set a value."""
        plain = _plain(path)
        return self.sources.get(plain, f"--{'.'.join(plain)}")

    def find_text(self, path: KeyPath) -> str | None:
        """Return the text of the command line that set a value, if one did."""
        return self.is_text.get(_plain(path))


def _plain(path: KeyPath) -> KeyPath:
    """Return a key path as options spell it, without `init_args`."""
    return tuple(key for key in path if key != "init_args")


def check_recipe(args: Sequence[str]) -> None:
    """Check the arguments of `gnnplace train` as far as source tells what they may be.

    Args:
        args: The arguments after `gnnplace train`, the command first.

    Raises:
        FormatError: A recipe is missing, or no YAML; the message names file and line.
        InputError: The first mistake: an unknown key or class, a value of the wrong type, a list
            without brackets, a folder that cannot be made, a monitor that is never logged, a
            package that is not installed, a checkpoint that is none, a precision or a batch size
            that cannot be trained with.
    """
    command = args[0]
    if command not in COMMAND_KEYS or any(_asks_for_help(arg) for arg in args):
        return
    forget_modules()
    recipe = read_recipe(command, args[1:])
    _check_keys(recipe, command)
    _check_checkpoint(recipe, command)
    trainer = recipe.sections.get("trainer")
    if isinstance(trainer, dict):
        source = find_class(TRAINER)
        if isinstance(source, ClassSource):
            _check_arguments(recipe, ("trainer",), trainer, find_constructor(source))
    for key in ("model", "data", "optimizer", "lr_scheduler"):
        _check_class(recipe, (key,), recipe.sections.get(key))
    _check_policies(recipe)
    if not any(arg.startswith("--print_config") for arg in args):
        _check_folders(recipe)


def _asks_for_help(arg: str) -> bool:
    return arg in ("-h", "--help") or arg.partition("=")[0].endswith(".help")


# ---------------------------------------------------------------- putting a recipe together


def read_recipe(command: str, args: Sequence[str]) -> TrainingRecipe:
    """Return the files and options of a command, later ones over earlier ones.

    Raises:
        FormatError: A file is missing, or no YAML.
        InputError: A file holds no keys, or an argument is no option.
    """
    recipe = TrainingRecipe()
    waiting = list(args)
    while command == "sweep" and waiting and not waiting[0].startswith("-"):
        _add_file(recipe, waiting.pop(0), command)
    while waiting:
        option = waiting.pop(0)
        if not option.startswith("-"):
            raise InputError(
                f"{option}: is no option; options begin with --, and a list is written in "
                "brackets, as in --data.ops=[20,60]"
            )
        name, equals, text = option.partition("=")
        if name == "--print_config":
            continue
        if not equals:
            if not waiting or waiting[0].startswith("--"):
                continue  # an option without a value, which the parser knows
            text = waiting.pop(0)
        key = name.lstrip("-").rstrip("+")
        if key in ("config", "c"):
            _add_file(recipe, text, command)
        elif command == "sweep" and key == "set":
            swept, _, values = text.partition("=")
            first_value = values.partition("..")[0].partition("|")[0]
            _add_option(recipe, swept.split("."), first_value, appends=False)
        elif key:
            _add_option(recipe, key.split("."), text, appends=name.endswith("+"))
    return recipe


def _add_file(recipe: TrainingRecipe, path: str, command: str) -> None:
    if path.lstrip().startswith("{") or "\n" in path:
        return  # YAML itself, which the parser takes as well
    sections = read_yaml(path)
    if sections is None:
        return
    if not isinstance(sections, dict):
        raise InputError(
            f"{path}: must be keys and values, as the recipes of trainers/"
        )
    if set(sections) == {command} and isinstance(sections[command], dict):
        sections = sections[command]
    sections = {str(key): value for key, value in sections.items()}
    _merge(recipe, recipe.sections, sections, (), path)


def _merge(
    recipe: TrainingRecipe,
    target: dict[str, Any],
    added: Mapping[str, Any],
    path: KeyPath,
    file: str,
) -> None:
    """Put a mapping of a file over one of the recipe."""
    for name, value in added.items():
        key = str(name).removesuffix("+")
        appends = str(name).endswith("+")
        key_path = (*path, key)
        recipe.note(key_path, f"{file}: {'.'.join(key_path)}")
        if key_path in SHORT_NAMES and isinstance(value, str):
            value = {"class_path": value}
        if isinstance(value, dict):
            current = target.get(key)
            if not isinstance(current, dict):
                current = {}
            if "class_path" in value:
                current = _make_class_section(current, value["class_path"])
            target[key] = current
            _merge(recipe, current, value, key_path, file)
        elif appends and isinstance(value, list) and isinstance(target.get(key), list):
            target[key] = [*target[key], *value]
        else:
            target[key] = value


def _make_class_section(section: dict[str, Any], class_path: object) -> dict[str, Any]:
    """Return the section of a class, without arguments that another class had there."""
    if section.get("class_path") in (None, class_path):
        return section
    return {"class_path": class_path}


def _add_option(
    recipe: TrainingRecipe, keys: list[str], text: str, *, appends: bool
) -> None:
    """Set what an option of the command line sets."""
    try:
        value = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError):
        value = text
    target: Any = recipe.sections
    path: KeyPath = ()
    for key in keys[:-1]:
        target, path = _enter(target, path, key)
        if target is None:
            return  # options of what is no mapping: for the parser to judge
    last = keys[-1]
    key_path = (*path, last)
    option = f"--{'.'.join(keys)}"
    recipe.note(key_path, option, text)
    if key_path in SHORT_NAMES and isinstance(value, str):
        recipe.note((*key_path, "class_path"), option, text)
        target[last] = _read_class_section(target.get(last), value, is_list=appends)
        return
    if last == "class_path":
        fresh = _make_class_section(dict(target), value)
        target.clear()
        target.update(fresh)
    if _is_class(target, path) and last not in CLASS_KEYS:
        target = target.setdefault("init_args", {})
    if appends and isinstance(target.get(last), list):
        target[last] = [*target[last], *(value if isinstance(value, list) else [value])]
    else:
        target[last] = value


def _read_class_section(current: object, class_path: str, *, is_list: bool) -> object:
    """Return a section after an option named a class in it.

    Args:
        current: The section before, if there was one.
        class_path: The class.
        is_list: Whether the class is one more of several.
    """
    if is_list:
        if isinstance(current, list):
            items = current
        elif current:
            items = [current]
        else:
            items = []
        return [*items, {"class_path": class_path}]
    section = _make_class_section(
        current if isinstance(current, dict) else {}, class_path
    )
    section["class_path"] = class_path
    return section


def _enter(
    target: dict[str, Any], path: KeyPath, key: str
) -> tuple[dict[str, Any] | None, KeyPath]:
    """Return the mapping below a key, where an option's name goes on; None where there is none."""
    if _is_class(target, path) and key not in CLASS_KEYS:
        target = target.setdefault("init_args", {})
        path = (*path, "init_args")
    if not target.get(key):
        target[key] = {}
    below = target[key]
    if isinstance(below, list):  # options go to the last of a list
        below = below[-1]
    return (below if isinstance(below, dict) else None), (*path, key)


def _is_class(section: dict[str, Any], path: KeyPath) -> bool:
    return "class_path" in section or path in (("model",), ("data",))


# ---------------------------------------------------------------- keys, classes and types


def _check_keys(recipe: TrainingRecipe, command: str) -> None:
    """Refuse a key at the top that no command, or not this one, has."""
    allowed = (*RUN_KEYS, *COMMAND_KEYS[command])
    for key in recipe.sections:
        if key in allowed or key.startswith("x-"):
            continue
        owner = next((name for name, keys in COMMAND_KEYS.items() if key in keys), None)
        if owner is not None:
            raise InputError(
                f"{recipe.find_source((key,))}: is of `train {owner}`; leave it out"
            )
        raise InputError(
            f"{recipe.find_source((key,))}: unknown key{suggestion(key, allowed)}"
        )
    for key, annotation in TYPES.items():
        if key in recipe.sections:
            parameter = Parameter(
                ast.parse(annotation, mode="eval").body, takes_none=True
            )
            _check_value(recipe, (key,), recipe.sections[key], parameter)


def _check_class(recipe: TrainingRecipe, path: KeyPath, section: object) -> None:
    """Check a class that a section names, and what it is made with."""
    if isinstance(section, list):
        for item in section:
            _check_class(recipe, path, item)
        return
    if isinstance(section, str) and path in SHORT_NAMES:
        section = {"class_path": section}
    if not isinstance(section, dict) or not isinstance(section.get("class_path"), str):
        return
    for key in section:
        if key not in CLASS_KEYS:
            near = (
                suggestion(key, CLASS_KEYS) or "; a class has class_path and init_args"
            )
            raise InputError(f"{recipe.find_source((*path, key))}: unknown key{near}")
    source = _find_class(recipe, path, section["class_path"])
    if source is None:
        return
    _check_base(recipe, path, source)
    _check_package(recipe, path, source)
    arguments = section.get("init_args") or {}
    if isinstance(arguments, dict):
        constructor = find_constructor(source)
        _check_arguments(recipe, path, arguments, constructor)
        if path in BASES and "dict_kwargs" not in section:
            _check_required(recipe, path, arguments, constructor)
        _check_least(recipe, path, arguments, source)


def _find_class(recipe: TrainingRecipe, path: KeyPath, name: str) -> ClassSource | None:
    """Return the class of a name; None where only Lightning's parser can tell.

    Raises:
        InputError: There is none.
    """
    position = recipe.find_source((*path, "class_path"))
    if (*_plain(path), "class_path") not in recipe.sources:
        position = recipe.find_source(path)
    if "." in name:
        match = find_class(name)
        if isinstance(match, Missing):
            raise InputError(f"{position}: {_missing(name, match)}")
        return match
    modules = SHORT_NAMES.get(path, ())
    names: dict[str, str] = {}
    for module in modules:
        names |= {
            class_name: f"{module}.{class_name}"
            for class_name in _list_classes(module, path)
        }
    if name in names:
        match = find_class(names[name])
        if isinstance(match, ClassSource):
            return match
        return None
    if not names or _has_user_classes(recipe):
        return None
    near = suggestion(name, names)
    if len(names) < 8:
        listed = f"one of {', '.join(sorted(names))}"
    else:
        listed = "one of Lightning's"
    mend = (
        near
        or f"; name {listed}, or one of your own with its module, as in mine.{name}"
    )
    raise InputError(f"{position}: there is no class {name!r}{mend}")


def _missing(name: str, match: Missing) -> str:
    """Return the message about a dotted name that leads nowhere."""
    if match.name:
        near = suggestion(match.name, match.names)
        return f"there is no class {match.name!r} in {_short(match.module)}{near}"
    package = name.partition(".")[0]
    return (
        f"class {name!r}: no module {match.module!r} is here; run it in the folder of "
        f"{package}.py, or pip install {package.replace('_', '-')}"
    )


def _short(module: str) -> str:
    """Return a module's name without the packages around it."""
    return f"module {module.rpartition('.')[2]!r}"


def _list_classes(module: str, path: KeyPath) -> list[str]:
    """Return the names of the classes of a module that fit a section."""
    match = find_class(f"{module}.__no_such_name__")
    if isinstance(match, Missing):
        names = match.names
    else:
        names = ()
    kind = KINDS.get(path)
    if kind is None:
        return [name for name in names if name[:1].isupper()]
    fitting = []
    for name in names:
        if name[:1].isupper():
            source = find_class(f"{module}.{name}")
        else:
            source = None
        if isinstance(source, ClassSource):
            bases = list_bases(source)
        else:
            bases = iter(())
        if any(base is not None and base.name == kind for base in bases):
            fitting.append(name)
    return fitting


def _has_user_classes(recipe: TrainingRecipe) -> bool:
    """Return whether a class of neither this package nor Lightning is named with its module."""
    packages = ("gnnplace", "lightning", "pytorch_lightning", "torch")
    return any(
        "." in name and name.partition(".")[0] not in packages
        for name in _class_paths(recipe)
    )


def _class_paths(recipe: TrainingRecipe) -> Iterator[str]:
    for _, section in _walk((), recipe.sections):
        if isinstance(section, dict) and isinstance(section.get("class_path"), str):
            yield section["class_path"]


def _walk(path: KeyPath, section: object) -> Iterator[tuple[KeyPath, object]]:
    """Yield all parts of a section with their key paths."""
    yield path, section
    if isinstance(section, dict):
        for key, value in section.items():
            yield from _walk((*path, str(key)), value)
    elif isinstance(section, list):
        for value in section:
            yield from _walk(path, value)


def _check_base(recipe: TrainingRecipe, path: KeyPath, source: ClassSource) -> None:
    """Refuse a class that cannot stand in its section, such as a layer as the model."""
    wanted = BASES.get(path)
    if wanted is None or not isinstance(source.node, ast.ClassDef):
        return
    bases = list(list_bases(source))
    if None not in bases and not any(
        base is not None and base.name == wanted for base in bases
    ):
        raise InputError(f"{recipe.find_source(path)}: {source.name} is no {wanted}")


def _check_required(
    recipe: TrainingRecipe,
    path: KeyPath,
    arguments: Mapping[str, Any],
    constructor: Constructor,
) -> None:
    """Refuse a class of which an argument without a default is left out."""
    for key, parameter in constructor.parameters.items():
        if parameter.is_required and key not in arguments:
            option = f"--{'.'.join((*path, key))}"
            raise InputError(
                f"{recipe.find_source(path)}: {constructor.name} needs {key}: add {option}"
            )


def _check_package(recipe: TrainingRecipe, path: KeyPath, source: ClassSource) -> None:
    """Refuse one of Lightning's classes whose package is not installed."""
    packages = PACKAGES.get(source.name, ())
    if not source.module.name.startswith("lightning.") or not packages:
        return
    if not any(is_installed(package) for package in packages):
        raise InputError(
            f"{recipe.find_source(path)}: {source.name} needs the package {packages[0]}, which is "
            f"not installed: pip install {packages[0].replace('_', '-')}"
        )


def _check_arguments(
    recipe: TrainingRecipe,
    path: KeyPath,
    arguments: Mapping[str, Any],
    constructor: Constructor,
) -> None:
    """Check the names and values that a class is to be made with."""
    for key, value in arguments.items():
        key_path = (*path, str(key))
        parameter = constructor.parameters.get(str(key))
        if parameter is None:
            if not constructor.is_open:
                near = suggestion(str(key), constructor.parameters)
                raise InputError(
                    f"{recipe.find_source(key_path)}: {constructor.name} has no argument "
                    f"{key!r}{near}"
                )
            continue
        _check_class(recipe, key_path, value)
        _check_value(recipe, key_path, value, parameter)


def _check_value(
    recipe: TrainingRecipe, path: KeyPath, value: object, parameter: Parameter
) -> None:
    """Refuse a value of another type than its argument's."""
    text = recipe.find_text(path)
    reason = wrong_type(parameter, value, text is not None)
    if reason:
        if text is not None:
            shown = text
        else:
            shown = _as_yaml(value)
        raise InputError(f"{recipe.find_source(path)}: {shown}: {reason}")


def _as_yaml(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.partition("\n...")[0].strip()[:100]


def wrong_type(parameter: Parameter, value: object, is_text: bool) -> str:
    """Return what a value must be if its type is wrong, else an empty text.

    Args:
        parameter: The argument.
        value: The value as YAML reads it.
        is_text: Whether it comes from the command line, where a text needs no quotes.
    """
    if parameter.annotation is None or (value is None and parameter.takes_none):
        return ""
    if _fits(parameter.annotation, value, is_text):
        return ""
    kinds = [_find_type_kind(option) for option in _options(parameter.annotation)]
    wanted = " or ".join(dict.fromkeys(WORDS[kind] for kind in kinds if kind != "None"))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if "list" in kinds and (is_number or isinstance(value, str)):
        inside = str(value).strip("()[] ")
        return f"must be {wanted}, in brackets: [{inside}]"
    items = value if isinstance(value, list) else []
    for option in _options(parameter.annotation):
        if (
            _find_type_kind(option) == "list"
            and items
            and isinstance(option, ast.Subscript)
        ):
            return f"must be {_list_words(option)}"
    return f"must be {wanted}"


def _list_words(annotation: ast.Subscript) -> str:
    kinds = [ast.unparse(part) for part in _parts(annotation)]
    plural = {
        "int": "whole numbers",
        "float": "numbers",
        "str": "texts",
        "bool": "true or false",
    }
    if kinds[-1:] == ["..."] or len(kinds) == 1:
        return f"a list of {plural.get(kinds[0], 'values')}"
    if len(set(kinds)) == 1:
        same = plural.get(kinds[0], "values")
    else:
        same = "values"
    return f"a list of {len(kinds)} {same}"


def _options(annotation: ast.expr) -> list[ast.expr]:
    """Return the types that a union allows, or the type alone."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        with suppress(SyntaxError):
            return _options(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return [*_options(annotation.left), *_options(annotation.right)]
    if isinstance(annotation, ast.Subscript):
        name = _last(annotation.value)
        if name == "Optional":
            return [*_options(annotation.slice), ast.Constant(None)]
        if name == "Union":
            return [option for part in _parts(annotation) for option in _options(part)]
    return [annotation]


def _parts(annotation: ast.Subscript) -> list[ast.expr]:
    inside = annotation.slice
    if isinstance(inside, ast.Tuple):
        return list(inside.elts)
    return [inside]


def _last(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _find_type_kind(annotation: ast.expr) -> str:
    """Return the kind of a type that is compared with values: a key of `WORDS`; else "any"."""
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return "None"
    if isinstance(annotation, ast.Subscript):
        base = annotation.value
    else:
        base = annotation
    name = _last(base)
    if name in LISTS:
        return "list"
    return name if name in WORDS else "any"


def _fits(annotation: ast.expr, value: object, is_text: bool) -> bool:
    """Return whether a value may be of a type; True where the type is not followed."""
    return any(_fits_one(option, value, is_text) for option in _options(annotation))


def _fits_one(annotation: ast.expr, value: object, is_text: bool) -> bool:
    kind = _find_type_kind(annotation)
    is_bool = isinstance(value, bool)
    if kind == "any":
        return True
    if kind == "None":
        return value is None
    if kind == "bool":
        return is_bool or str(value).lower() in (
            "true",
            "false",
            "yes",
            "no",
            "on",
            "off",
        )
    if kind == "int":
        return not is_bool and _is_number(value, whole=True)
    if kind == "float":
        return not is_bool and _is_number(value, whole=False)
    if kind == "str":
        return is_text or not isinstance(value, list | dict)
    if not isinstance(value, list):
        return False
    if not isinstance(annotation, ast.Subscript):
        return True
    parts = _parts(annotation)
    if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
        parts = parts[:1]
    elif len(parts) > 1 or _last(annotation.value) in ("tuple", "Tuple"):
        if len(parts) != len(value):
            return False
        return all(
            _fits(part, item, False) for part, item in zip(parts, value, strict=True)
        )
    return all(_fits(parts[0], item, False) for item in value)


def _is_number(value: object, *, whole: bool) -> bool:
    if isinstance(value, str):  # YAML 1.1 reads 1e-4 as a text
        try:
            value = float(value)
        except ValueError:
            return False
    if not isinstance(value, int | float):
        return False
    if whole:
        return math.isfinite(value) and float(value).is_integer()
    return not math.isnan(value)


# ---------------------------------------------------------------- what the classes check themselves


def _check_least(
    recipe: TrainingRecipe,
    path: KeyPath,
    arguments: Mapping[str, Any],
    source: ClassSource,
) -> None:
    """Refuse a number below the least that a class of ours checks with `check_least`."""
    for owner in list_bases(source):
        if owner is None or not owner.module.name.startswith(OURS):
            continue
        for key, minimum in _find_least_values(owner.node).items():
            value = arguments.get(key)
            if isinstance(value, int | float) and value < minimum:
                raise InputError(f"{path[0]}.{key}: {value} is below {minimum}")


def _find_least_values(node: ast.AST) -> dict[str, float]:
    """Return the least value of each argument of which the source says one."""
    minima: dict[str, float] = {}
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "check_least":
            continue
        for keyword in call.keywords:
            pair = keyword.value
            if (
                not isinstance(pair, ast.Tuple)
                or keyword.arg is None
                or len(pair.elts) != 2
            ):
                continue
            name, number = pair.elts
            is_argument = isinstance(name, ast.Name) and name.id == keyword.arg
            if isinstance(number, ast.Constant):
                value = number.value
            else:
                value = None
            if is_argument and isinstance(value, int | float):
                minima[keyword.arg] = value
    return minima


def _check_checkpoint(recipe: TrainingRecipe, command: str) -> None:
    """Refuse a checkpoint that cannot be one.

    Raises:
        InputError: There is no such file, it is none, or it is the best of a run that has not been.
    """
    path = recipe.sections.get("ckpt_path")
    if path is None:
        return
    position = recipe.find_source(("ckpt_path",)).replace("--ckpt_path", "ckpt_path")
    if path == "best":
        raise InputError(
            f"{position} best: a new process knows no best checkpoint; give its file, as "
            "--ckpt_path=runs/default/checkpoints/NAME.ckpt, or 'last'"
        )
    if (
        path in ("last", "hpc")
        or "://" in str(path)
        or str(path).startswith("registry")
    ):
        return
    if not zipfile.is_zipfile(str(path)):
        if Path(str(path)).exists():
            fault = "not a checkpoint"
        else:
            fault = "no such file"
        raise InputError(f"{position} {path}: {fault}; give a .ckpt file or 'last'")


def _check_policies(recipe: TrainingRecipe) -> None:
    """Check what the policies of this package cannot be trained with, and what they never log."""
    model = recipe.sections.get("model")
    if isinstance(model, dict):
        name = model.get("class_path")
    else:
        name = None
    if not isinstance(name, str):
        return
    source = find_class(name if "." in name else f"{OURS}.{name}")
    if not isinstance(source, ClassSource) or not source.module.name.startswith(OURS):
        return
    trainer = recipe.sections.get("trainer")
    if not isinstance(trainer, dict):
        trainer = {}
    precision = trainer.get("precision")
    evolves = any(
        base is not None and base.name == EVOLVED for base in list_bases(source)
    )
    allowed = (*SINGLE, *MIXED) if evolves else SINGLE
    if precision is not None and str(precision) not in allowed:
        raise InputError(
            f"{recipe.find_source(('trainer', 'precision'))}: {precision}: {source.name} is "
            f"trained in {SINGLE[0]} alone; leave precision out"
        )
    _check_monitors(recipe, trainer, source)


def _check_monitors(
    recipe: TrainingRecipe, trainer: Mapping[str, Any], model: ClassSource
) -> None:
    """Refuse a callback's monitor that a model of this package never logs."""
    callbacks = trainer.get("callbacks") or []
    if not isinstance(callbacks, list):
        callbacks = [callbacks]
    sections = [
        item if isinstance(item, dict) else {"class_path": item} for item in callbacks
    ]
    names = [str(section.get("class_path", "")) for section in sections]
    if any(
        "." in name and not name.startswith(("lightning.", "gnnplace."))
        for name in names
    ):
        return  # a callback of the user's may log more
    metrics = list_logged_metrics(model)
    for section in sections:
        arguments = section.get("init_args")
        if isinstance(arguments, dict):
            monitor = arguments.get("monitor")
        else:
            monitor = None
        if (
            not isinstance(monitor, str)
            or monitor in (*metrics, *ANY_METRIC)
            or not metrics
        ):
            continue
        near = (
            suggestion(monitor, metrics) or f"; there are {', '.join(sorted(metrics))}"
        )
        position = recipe.find_source(("trainer", "callbacks", "monitor"))
        raise InputError(f"{position}: {model.name} logs no {monitor!r}{near}")


def list_logged_metrics(model: ClassSource) -> set[str]:
    """Return the names that a class and its bases of this package log.

    Returns:
        None of them where some are logged under names that the source does not hold.
    """
    metrics: set[str] = set()
    for owner in list_bases(model):
        if owner is None or not owner.module.name.startswith(OURS):
            continue
        for call in ast.walk(owner.node):
            if not isinstance(call, ast.Call):
                continue
            function = ast.unparse(call.func)
            if function == "self.log" and isinstance(call.args[0], ast.Constant):
                metrics.add(str(call.args[0].value))
            elif function in ("self.log", "self.log_dict"):
                return set()
    return metrics


# ---------------------------------------------------------------- folders


def _check_folders(recipe: TrainingRecipe) -> None:
    """Refuse a folder that cannot be made or written to; nothing that is made for it stays."""
    if os.environ.get("RANK", "0") != "0":
        return  # the first process has looked
    for path, section in _walk((), recipe.sections):
        value = section
        if (
            not path
            or path[-1] not in FOLDERS
            or not isinstance(value, str)
            or "://" in value
        ):
            continue
        reason = folder_error(Path(value).expanduser())
        if reason:
            raise InputError(
                f"{recipe.find_source(path)} {value}: {reason}; give another folder"
            )


def folder_error(folder: Path, probe: Callable[[Path], bool] | None = None) -> str:
    """Return why a folder cannot be made or written to; empty where it can.

    Args:
        folder: A folder that need not exist. What is made to try it is removed.
        probe: Tells whether an existing folder can be written to; `os.access` by default.
    """
    created: list[Path] = []
    try:
        for directory in reversed([folder, *folder.parents]):
            if not directory.exists():
                directory.mkdir()
                created.append(directory)
        if not folder.is_dir():
            return "is a file"
        if probe is None:
            writable = os.access(folder, os.W_OK | os.X_OK)
        else:
            writable = probe(folder)
        if writable:
            return ""
        return "cannot be written to"
    except FileExistsError:
        return ""  # made by another process meanwhile
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    finally:
        for directory in reversed(created):
            with suppress(OSError):
                directory.rmdir()
