"""What readers of YAML share: keys with their lines, types by name, and what no price counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnnplace.errors import FormatError
from gnnplace.files import parse_yaml
from gnnplace.launch.deepspeed_reading import read_beside
from gnnplace.launch.interpolation import MissingValue, resolve
from gnnplace.launch.keys import FileValue, Keys, put_values, yaml_lines
from gnnplace.launch.launch_plan import (
    PRICED_OPTIMIZERS,
    LaunchPlan,
    NotPriced,
    check_plan_words,
    with_header,
)

GPT2_TOKENS = 50257


@dataclass
class YamlReading:
    """The keys of a file, and what was found to have no word.

    Attributes:
        keys: Keys and values; what only the environment has is `MissingValue`.
        notes: Notes on what has no word, each in one line.
        not_priced: Keys that no price counts.
        needs: Names of what only the environment has.
    """

    keys: Keys
    notes: list[str] = field(default_factory=list)
    not_priced: list[NotPriced] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)

    @classmethod
    def of_text(
        cls,
        text: str,
        source: str,
        values: Mapping[str, str],
        known: Sequence[str] = (),
    ) -> YamlReading:
        """Return the keys of a YAML text with its interpolations resolved.

        Args:
            text: The text.
            source: The file's path, which errors begin with.
            values: Values for keys, by their paths, and for names of the environment.
            known: Keys that may be set although the text does not have them.

        Raises:
            FormatError: If it is no YAML of keys and values, or a value is for no key of it.
        """
        # A tab between the braces of JSON is a blank.
        data = parse_yaml(text.replace("\t", " "), source)
        environment = {
            name: value for name, value in values.items() if f"{name}" in text
        }
        paths = {k: v for k, v in values.items() if _is_key(data, k) or k in known}
        unused = [
            name for name in values if name not in paths and name not in environment
        ]
        if unused:
            raise FormatError(f"{source}: --set {unused[0]}: the file has no such key")
        data = put_values(data, paths, source, known)
        return cls(Keys(resolve(data, values), source, yaml_lines(text)))

    def finish(self, plan: LaunchPlan, text: str) -> LaunchPlan:
        """Return a plan with what was found beside its words, checked.

        Args:
            plan: The plan as the file's keys say it.
            text: The file, whose header may say what its keys cannot.

        Raises:
            FormatError: If the words of the plan contradict.
        """
        source = self.keys.source
        plan = replace(
            plan,
            notes=tuple(self.notes),
            not_priced=tuple(self.not_priced),
            needs=tuple(self.needs),
        )
        return check_plan_words(with_header(plan, text, source), source)

    def vocabulary(self, *paths: str) -> int:
        """Return the rows of the embedding by the first key that has them, else GPT-2's, noted."""
        for path in paths:
            if size := self.count(path):
                return size
        self.notes.append(
            f"the vocabulary is the tokenizer's: {GPT2_TOKENS} tokens are assumed"
        )
        return GPT2_TOKENS

    def refuse_price(self, path: str, effect: str) -> None:
        """Note that no price counts a key."""
        self.not_priced.append(
            NotPriced(key=path, effect=effect, line=self.keys.line(path))
        )

    def refuse_switches(self, effects: Mapping[str, str]) -> None:
        """Note that no price counts switches that are on."""
        for path, effect in effects.items():
            if self.keys.has(path) and self.get(path) not in (False, 0, "", {}, []):
                self.refuse_price(path, effect)

    def get(self, path: str) -> FileValue:
        """Return the value at a path, or None if it is not there or not known."""
        if not self.keys.has(path):
            return None
        value = self.keys.get(path)
        if isinstance(value, MissingValue):
            if value.name not in self.needs:
                self.needs.append(value.name)
            return None
        return value

    def count(
        self, path: str, default: int | None = None, least: int = 1
    ) -> int | None:
        """Return a whole number, the default where it is not there or not known.

        Raises:
            FormatError: If it is another value.
        """
        value = self.get(path)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= 10**12:
            raise self.keys.fault(path, f"must be a whole number from {least} on")
        return value

    def degree(self, path: str) -> int:
        """Return a degree of parallelism, 1 where it is not there."""
        return self.count(path, 1) or 1

    def is_on(self, path: str) -> bool:
        """Return whether a switch is on."""
        value = self.get(path)
        return value is True or str(value).lower() == "true"

    def text(self, path: str) -> str:
        """Return a value's text in small letters, empty where it is not there."""
        value = self.get(path)
        if value is None or isinstance(value, (dict, list)):
            return ""
        return str(value).lower()

    def optimizer(self, path: str, name: str) -> str | None:
        """Return an optimizer; one of another kind is noted and keeps its name."""
        if not name:
            return None
        if name not in PRICED_OPTIMIZERS:
            effect = f"the update and the state of {name}; priced as adamw"
            self.refuse_price(path, effect)
        return name


def _is_key(data: FileValue, path: str) -> bool:
    part = data
    for name in path.split("."):
        if not isinstance(part, dict) or name not in part:
            return False
        part = part[name]
    return True


def with_json(
    reading: YamlReading, plan: LaunchPlan, path: str, key: str
) -> LaunchPlan:
    """Return a plan with what DeepSpeed's JSON beside a file says.

    Args:
        reading: The file.
        plan: Its plan so far, whose batch and precision count where the JSON has auto.
        path: The JSON's path as the file has it.
        key: The key that names it.

    Raises:
        FormatError: If the JSON is not beside the file, or cannot be read.
    """
    engine = read_beside(reading.keys.source, path, key)
    reading.notes += engine.notes
    reading.not_priced += engine.not_priced
    half = (plan.precision or engine.precision or "32-true").partition("-")[0]
    precision = engine.precision or (f"{half}-master" if half != "32" else "32-true")
    return LaunchPlan(
        **{
            **{name: getattr(plan, name) for name in PLAN_WORDS},
            "zero": engine.zero,
            "group": engine.group,
            "overlap": engine.overlap,
            "offload": engine.offload,
            "precision": precision,
            "lines": {**plan.lines, "zero": None},
        }
    )


PLAN_WORDS = (
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "sp",
    "microbatch_size",
    "batch",
    "accumulation",
    "recompute",
    "gradients",
    "optimizer",
    "compile",
    "sizes",
    "lora",
    "precision",
    "lines",
)


def training_optimizer(reading: YamlReading, path: str) -> str | None:
    """Return the optimizer of a name such as `adamw_torch_fused`; 4-bit ones are noted."""
    name = reading.text(path)
    if not name:
        return None
    if name in ("adamw_8bit", "adamw_bnb_8bit"):
        return "adamw-8bit"
    if "8bit" in name or "4bit" in name:
        reading.refuse_price(path, f"moments in few bits ({name}); priced in fp32")
        return "adamw"
    if name.startswith(("adamw", "sgd")):
        base = name.partition("_")[0]
    else:
        base = name
    return reading.optimizer(path, base)
