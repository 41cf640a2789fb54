"""Megatron-LM and Megatron-DeepSpeed: flags of the command that a script would run.

What counts is the command, not the text: a shell's variables, arrays, conditions and heredocs are
followed on what is known (`launch.shell`), nothing is run. A value of a flag of the plan that
only the environment has is asked for by its name. `MODEL_ARGS` of Megatron's functional tests
(`--flag: value` lines) and files of flags alone are read alike. Where Megatron-DeepSpeed's flags
and its JSON contradict, the JSON counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from gnnplace.errors import FormatError
from gnnplace.launch import megatron_swift
from gnnplace.launch.deepspeed_reading import read_deepspeed
from gnnplace.launch.launch_plan import LaunchPlan, check_plan_words, with_header
from gnnplace.launch.megatron_flags import EFFECTS, HARMLESS
from gnnplace.launch.megatron_plan import (
    NUMBERS,
    SEVERAL,
    SIZES,
    Flags,
    fault,
    is_counted,
    is_known,
    is_on,
    parse_plan_flags,
)
from gnnplace.launch.neighbours import read_neighbour
from gnnplace.launch.shell import (
    ShellCommand,
    ShellRun,
    Text,
    evaluate,
    find_line,
    find_names,
    literal,
    plain,
    split_words,
)

FLAG = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
SWITCHES = frozenset(
    [
        "bf16",
        "fp16",
        "swiglu",
        "sequence-parallel",
        "use-distributed-optimizer",
        "overlap-grad-reduce",
        "overlap-param-gather",
        "tp-comm-overlap",
        "group-query-attention",
        "untie-embeddings-and-output-weights",
        "multi-latent-attention",
        "qk-layernorm",
        "recompute-activations",
        "checkpoint-activations",
        "deepspeed",
        "deepspeed-activation-checkpointing",
        "use-megatron-fsdp",
        "enable-cuda-graph",
        "external-cuda-graph",
        "use-torch-fsdp2",
        "finetune",
        "mock-data",
        "moe-grouped-gemm",
        "no-pipeline-parallel",
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
        "grad-reduce-in-bf16",
        "accumulate-allreduce-grads-in-fp32",
        "disable-bias-linear",
        "fp8-param-gather",
        "optimizer-cpu-offload",
        "cpu-optimizer",
        "cpu-torch-adam",
        "fp8-hybrid",
        "fp8-e4m3",
        "squared-relu",
        "apply-layernorm-1p",
        "log-throughput",
        "moe-permute-fusion",
        "moe-router-pre-softmax",
        "calculate-per-token-loss",
        "manual-gc",
        "async-save",
    ]
)
SWITCH_PREFIXES = (
    "use-",
    "no-",
    "overlap-",
    "enable-",
    "disable-",
    "distribute-",
    "override-",
)
SIGN_FLAGS = frozenset((*NUMBERS, *SIZES, "model-parallel-size", "batch-size"))
"""A command with one of these would start training."""
PRINTERS = ("echo", "printf", "cat", "tee", "log", "print")
UNLIKE_MODELS = re.compile(
    r"(t5|bert|ict|retro|vision|vit|vlm|mamba|hybrid|multimodal|biencoder)"
)
IDLE_SCRIPTS = re.compile(
    r"(text_generation|text_gen|generat|inference|preprocess|convert|checkpoint|export|quantize|"
    r"ptq|evaluat)"
)
"""What names of scripts have that run no training, unless `TRAINERS` says otherwise."""
TRAINERS = re.compile(r"(train|tune|sft)")
LAUNCHER_NUMBERS = {
    "nproc-per-node": "nproc-per-node",
    "nnodes": "nnodes",
    "num-gpus": "nproc-per-node",
    "num-nodes": "nnodes",
    "num-processes": "world-size",
}
ONE_SERVER = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
YAML_LINE = re.compile(
    r"[ \t]*(?:-[ \t]+)?--([A-Za-z][\w-]*)(?:\s*:\s+|\s*:\s*$|=|\s+|\s*$)(.*)"
)
YAML_VALUE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")


@dataclass
class FlagSet:
    """Flags of one command.

    Attributes:
        values: Values of the flags by name, without dashes; "true" for a switch.
        lines: Line that each flag stands on.
        missing: Names that a flag's value depends on, by the flag.
        additions: Names of what may add flags and is not known.
        notes: Assumptions, each in one line.
        swift_command: The command of ms-swift that the flags are of; empty if of none.
    """

    values: Flags = field(default_factory=dict)
    lines: dict[str, int | None] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    additions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    swift_command: str = ""

    def counted(self) -> dict[str, object]:
        """Return the flags that a plan or its price depends on, to tell two runs apart."""
        return {
            name: self.missing.get(name, value)
            for name, value in self.values.items()
            if is_counted(name) or name in EFFECTS
        }


def read_megatron(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a script, of a file of flags or of a functional test.

    Args:
        text: The file.
        source: The file's path, which errors begin with.
        values: Values of the environment and of the script's arguments, by name or number.

    Raises:
        FormatError: If the script starts no training or several, a flag of the plan needs a value
            that only the environment has, or flags contradict each other.
    """
    if re.search(r"(?m)^[ \t]*(MODEL_ARGS|ENV_VARS)\s*:", text):
        flags = _find_yaml_flags(text, source, values or {})
        run = None
    else:
        run = evaluate(text, source, values)
        flags = _find_run_flags(run, source)
    if not flags.values:
        raise FormatError(
            f"{source}: has no flag of Megatron-LM, such as --num-layers 32"
        )
    _check_missing(flags, source)
    # ms-swift has flags of the same names, and other defaults.
    if flags.swift_command:
        flags.values = megatron_swift.add_defaults(flags.values, text)
    plan = _check_plan(_make_plan(flags, run, source), flags, run, source)
    unknown = [name for name in flags.values if not is_known(name)]
    notes = list(flags.notes)
    if flags.swift_command:
        plan = _with_adapters(plan, flags)
        unknown = [name for name in unknown if name not in megatron_swift.HARMLESS]
        if "model" in flags.values:
            notes.append(
                f"--model: {flags.values['model'][:80]}: give the model as MODEL"
            )
    if unknown:
        listed = ", ".join(f"--{name}" for name in unknown)
        notes.append(f"flags that are not known, and not priced: {listed}")
    if run is not None:
        notes += run.notes
    needs = [*plan.needs, *flags.additions]
    processes = [
        n for f in ("nproc-per-node", "nnodes") for n in flags.missing.get(f, ())
    ]
    plan = replace(
        plan,
        notes=(*plan.notes, *notes),
        needs=tuple(dict.fromkeys([*needs, *processes])),
    )
    return check_plan_words(with_header(plan, text, source), source)


def _with_adapters(plan: LaunchPlan, flags: FlagSet) -> LaunchPlan:
    """Return a plan with ms-swift's adapters and what no price counts of its own flags."""
    lora = megatron_swift.adapters(flags.values)
    entries = [
        entry for entry in plan.not_priced if lora is None or entry.key != "--lora-rank"
    ]
    entries += megatron_swift.effects(flags.swift_command, flags.values, flags.lines)
    return replace(plan, lora=lora, not_priced=tuple(entries))


def _make_plan(flags: FlagSet, run: ShellRun | None, source: str) -> LaunchPlan:
    """Return the plan of flags, and of DeepSpeed's JSON where they name one."""
    known_flags = {n: v for n, v in flags.values.items() if n not in flags.missing}
    if is_on(known_flags, "no-pipeline-parallel"):
        known_flags["pipeline-model-parallel-size"] = "1"
    plan = _with_hint(known_flags, flags, run, source)
    if "deepspeed-config" not in flags.values:
        return plan
    text, path, missing = _find_deepspeed_text(flags, run, source)
    if missing:
        raise _needs_error(source, {"--deepspeed_config": missing})
    if text is None:
        note = f"--deepspeed_config {path}: is not beside the script; its flags alone count"
        return replace(plan, notes=(*plan.notes, note))
    return _with_deepspeed(plan, read_deepspeed(text, f"{source}: {path}"), path)


def _check_plan(
    plan: LaunchPlan, flags: FlagSet, run: ShellRun | None, source: str
) -> LaunchPlan:
    """Return a plan whose fields agree.

    Raises:
        FormatError: If they do not. If there are too few processes, the message names the flag that
            says them.
    """
    try:
        return check_plan_words(plan, source)
    except FormatError as error:
        raise _add_hint(error, flags, run) from None


def _add_hint(error: FormatError, flags: FlagSet, run: ShellRun | None) -> FormatError:
    """Return an error about processes with the flag whose variable says the servers."""
    if "process" not in str(error) or run is None:
        return error
    line = flags.lines.get("nnodes") or flags.lines.get("nproc-per-node")
    place = "" if line is None else f" (line {line})"
    return FormatError(
        f"{error}; say the servers of the run by the variable of --nnodes{place}, such as "
        "--set NUM_NODES=16"
    )


def _with_hint(
    known: Flags, flags: FlagSet, run: ShellRun | None, source: str
) -> LaunchPlan:
    """Return the plan of flags.

    Raises:
        FormatError: If flags are wrong. If there are too few processes, the message names the
            variable that says the servers.
    """
    try:
        return parse_plan_flags(known, source, flags.lines)
    except FormatError as error:
        raise _add_hint(error, flags, run) from None


def _with_deepspeed(plan: LaunchPlan, engine: LaunchPlan, path: str) -> LaunchPlan:
    """Return a plan of flags with what DeepSpeed's JSON says, which counts more."""
    changes: dict[str, object] = {}
    notes = list(plan.notes)
    for word in ("batch", "microbatch_size", "zero", "precision"):
        value = getattr(engine, word)
        says = word in engine.lines
        if not says or value is None or value == getattr(plan, word):
            continue
        if word in plan.lines:
            notes.append(
                f"{word}: {value} of {path} counts, not {getattr(plan, word)} of the flags"
            )
        changes[word] = value
    lines = {**plan.lines, **dict.fromkeys(changes)}
    return replace(
        plan,
        **changes,  # type: ignore[arg-type]
        gradients=engine.gradients,
        offload=engine.offload,
        lines=lines,
        notes=(*notes, *engine.notes),
        not_priced=(
            *plan.not_priced,
            *(replace(e, line=None) for e in engine.not_priced),
        ),
    )


def _find_deepspeed_text(
    flags: FlagSet, run: ShellRun | None, source: str
) -> tuple[str | None, str, tuple[str, ...]]:
    """Return the JSON that a script writes or that stands beside it, its path, what it lacks."""
    path = flags.values["deepspeed-config"].strip("'\"")
    if run is not None and path in run.files:
        text = run.files[path]
        letters = plain(text)
        return letters, path, () if letters is not None else find_names(text)
    if path.endswith(".json"):
        text_beside = read_neighbour(source, path)
    else:
        text_beside = None
    return text_beside, path, ()


def _find_run_flags(run: ShellRun, source: str) -> FlagSet:
    """Return the flags of the one command that would start training.

    Raises:
        FormatError: If there is none, or there are several that differ.
    """
    commands = list(_training(run))
    training = [command for command in commands if not _is_idle(command)]
    if commands and not training:
        command = commands[0]
        script = _find_script(command)[1]
        raise FormatError(f"{source}: line {command.line}: {script} runs no training")
    starts = [(command, _find_command_flags(command, source)) for command in training]
    starts = [(command, flags) for command, flags in starts if flags.values]
    if not starts:
        return _flags_without_command(run, source)
    first = starts[0][1]
    unlike = [flags for _, flags in starts if flags.counted() != first.counted()]
    if not unlike:
        return first
    deciders = list(
        dict.fromkeys(n for command, _ in starts for n in command.conditions)
    )
    if deciders and any(command.conditions for command, _ in starts):
        raise _needs_error(
            source, {"which command starts the training": tuple(deciders)}
        )
    lines = sorted({command.line for command, _ in starts})
    places = ", ".join(map(str, lines))
    raise FormatError(
        f"{source}: starts {len(unlike) + 1} runs that differ (lines {places}); keep the one that "
        "is meant in a file of its own"
    )


def _training(run: ShellRun) -> Iterator[ShellCommand]:
    """Yield commands that have a flag of training, files of flags as one command."""
    loose: list[Text] = []
    for command in run.commands:
        name = plain(command.words[0]) or ""
        if name.startswith("--"):
            loose += command.words
        elif PurePosixPath(name).name not in PRINTERS and _has_sign(command.words):
            yield command
    if loose:
        yield ShellCommand(words=tuple(loose), line=find_line(loose[0]) or 0)


def _has_sign(words: Sequence[Text]) -> bool:
    """Return whether words have a flag of training, or a script of Megatron that may take some."""
    for word in _open_words(words):
        letters = plain(word) or ""
        match = FLAG.match(letters)
        if match is not None and match[1].replace("_", "-") in SIGN_FLAGS:
            return True
        if re.search(r"(^|/)pretrain_\w+\.py$", letters):
            return True
    return False


def _open_words(words: Iterable[Text]) -> Iterator[Text]:
    """Yield words, each followed by the words of every option of its unknown parts."""
    for word in words:
        yield word
        for part in word:
            if part.unknown is not None:
                for option in part.unknown.options:
                    yield from _open_words(split_words(option))


def _flags_without_command(run: ShellRun, source: str) -> FlagSet:
    """Return the flags of variables where no command uses any: a file that others source.

    Raises:
        FormatError: If there are none, or what would start training is in a file that is not here.
    """
    if run.unread:
        files = " and ".join(run.unread)
        raise FormatError(
            f"{source}: starts no training itself; it sources {files}, which is not beside it: "
            "give the file whose command starts the training, or put them into one folder"
        )
    flags = FlagSet()
    for name, text in run.variables.items():
        words = split_words(text)
        if _has_sign(words):
            _add_words(flags, words)
            flags.notes.append(
                f"no command uses the flags of {name}; they are taken as they stand"
            )
    if not flags.values:
        raise FormatError(
            f"{source}: no command of it starts training with flags of Megatron-LM"
        )
    return flags


def _find_script(command: ShellCommand) -> tuple[int | None, str]:
    """Return which word of a command is the script or module that it runs, and its name.

    The number is None, and the name empty, where there is none.
    """
    letters = [plain(word) or "" for word in command.words]
    ends = [word[-1].text if word else "" for word in command.words]
    start = next((k for k, text in enumerate(ends) if text.endswith(".py")), None)
    if start is None and "-m" in letters:
        modules = [k for k, text in enumerate(letters[:-1]) if text == "-m"]
        start = modules[-1] + 1
    if start is None:
        return None, ""
    return start, PurePosixPath(letters[start] or ends[start]).name


def _is_idle(command: ShellCommand) -> bool:
    """Return whether a command runs a script that, by its name, runs no training."""
    script = _find_script(command)[1]
    return bool(IDLE_SCRIPTS.search(script)) and not TRAINERS.search(script)


def _find_command_flags(command: ShellCommand, source: str) -> FlagSet:
    """Return the flags of a command, of its launcher those that say the processes.

    Raises:
        FormatError: If the script that it starts trains another kind of model.
    """
    flags = FlagSet()
    words = list(command.words)
    letters = [plain(word) or "" for word in words]
    if PurePosixPath(letters[0]).name == "megatron" and len(letters) > 1:
        if letters[1] in megatron_swift.OTHER_COMMANDS:
            raise FormatError(
                f"{source}: line {command.line}: megatron {letters[1]} runs no training"
            )
        if letters[1] in megatron_swift.TRAINING:
            flags.swift_command = letters[1]
    start, script = _find_script(command)
    if start is not None:
        unlike = UNLIKE_MODELS.search(script)
        if unlike is not None:
            raise FormatError(
                f"{source}: line {command.line}: {script} trains a model of another kind "
                f"({unlike[1]}); decoders of text (pretrain_gpt.py) are read"
            )
        _add_launcher(flags, words[:start])
        words = words[start + 1 :]
    _add_words(flags, words)
    return flags


def _add_launcher(flags: FlagSet, words: Sequence[Text]) -> None:
    """Add the processes that torchrun, deepspeed or accelerate are told."""
    letters = [plain(word) for word in words]
    for index, word in enumerate(letters):
        match = FLAG.fullmatch(word or "")
        if match is None:
            continue
        name = LAUNCHER_NUMBERS.get(match[1].replace("_", "-"))
        if name is None:
            continue
        value: str | None = match[2]
        place = words[index]
        if value is None and index + 1 < len(words):
            place = words[index + 1]
            value = letters[index + 1]
        flags.lines[name] = find_line(words[index])
        if value is None:
            flags.values[name] = "?"
            flags.missing[name] = find_names(place)
        elif value.isdigit():
            flags.values[name] = value
    started = any(text and any(sign in text for sign in ONE_SERVER) for text in letters)
    if started and "nproc-per-node" in flags.values and "nnodes" not in flags.values:
        flags.values["nnodes"] = "1"
        flags.lines["nnodes"] = flags.lines["nproc-per-node"]


def _add_words(flags: FlagSet, words: Sequence[Text]) -> None:
    """Add the flags of a command's words; of one that is repeated the last counts."""
    name = ""
    for word in words:
        letters = plain(word)
        if (
            letters is not None
            and letters.startswith("--")
            and re.search(r"\s", letters)
        ):
            _add_words(flags, [part for part in split_words(_unquote(word))])
            name = ""
            continue
        match = FLAG.fullmatch(letters) if letters is not None else None
        prefix = word[0].text if word and word[0].unknown is None else ""
        if (
            match is None
            and letters is None
            and prefix.startswith("--")
            and "=" in prefix
        ):
            name = prefix[2:].partition("=")[0].replace("_", "-")
            _set_flag(flags, name, "?", word)
            flags.missing[name] = find_names(word)
            name = ""
        elif match is not None:
            if match[1] != "DDP_impl":
                name = match[1].replace("_", "-")
            else:
                name = match[1]
            _set_flag(flags, name, match[2] if match[2] is not None else "true", word)
            if match[2] is not None:
                name = ""
        elif letters is None:
            name = _add_unknown(flags, name, word)
        elif name:
            if flags.values[name] == "true" and name not in flags.missing:
                flags.values[name] = letters
            elif name in SEVERAL:
                flags.values[name] += f" {letters}"


def _unquote(word: Text) -> Text:
    return tuple(replace(part, quoted=False) for part in word)


def _set_flag(flags: FlagSet, name: str, value: str, word: Text) -> None:
    flags.values.pop(name, None)
    flags.missing.pop(name, None)
    flags.values[name] = value
    flags.lines[name] = find_line(word)


def _add_unknown(flags: FlagSet, name: str, word: Text) -> str:
    """Add a word that is not known, as the value of a flag or as flags; return the open flag."""
    is_switch = (
        name in SWITCHES
        or name.startswith(SWITCH_PREFIXES)
        or name in HARMLESS_SWITCHES
    )
    takes_value = bool(name) and flags.values[name] == "true" and not is_switch
    unknown = next(part.unknown for part in word if part.unknown is not None)
    has_flags = any("--" in part.text for option in unknown.options for part in option)
    if takes_value and not has_flags:
        flags.values[name] = "".join(
            part.text if part.unknown is None else f"<{' '.join(part.unknown.names)}>"
            for part in word
        )
        flags.missing[name] = find_names(word)
        return ""
    if not unknown.options:
        named = ", ".join(
            f"${{{n}}}" if re.fullmatch(r"\w+", n) else n for n in unknown.names
        )
        flags.notes.append(f"{named}: what only the environment has; taken as empty")
        flags.additions += [n for n in unknown.names if n not in flags.additions]
        return name
    options = [FlagSet() for _ in unknown.options]
    for option, added in zip(unknown.options, options, strict=True):
        _add_words(added, split_words(option))
    if any(added.counted() != options[0].counted() for added in options[1:]):
        flags.values.setdefault("which flags are there", "?")
        flags.missing["which flags are there"] = unknown.names
        return ""
    for added in options[:1]:
        flags.values |= added.values
        flags.lines |= added.lines
        flags.missing |= added.missing
    return ""


HARMLESS_SWITCHES = frozenset(
    name for name in HARMLESS if name.startswith(("check-", "reset-", "eod-", "skip-"))
)


def _check_missing(flags: FlagSet, source: str) -> None:
    """Refuse flags of the plan whose values only the environment has.

    Raises:
        FormatError: The message names all that is missing, with the flags that need it.
    """
    free = ("nproc-per-node", "nnodes", "world-size", "deepspeed-config")
    needed = {
        f"--{name}" if " " not in name else name: names
        for name, names in flags.missing.items()
        if (is_counted(name) or " " in name) and name not in free
    }
    if needed:
        raise _needs_error(source, needed)
    for name in ("nproc-per-node", "nnodes", "world-size"):
        if name in flags.missing:  # the cluster says the processes instead
            flags.values.pop(name, None)


def _needs_error(source: str, needed: Mapping[str, tuple[str, ...]]) -> FormatError:
    """Return the error that asks for values by name."""
    needed = {
        flag: tuple(" ".join(name.split())[:60] for name in entry)
        for flag, entry in needed.items()
    }
    names = dict.fromkeys(name for entry in needed.values() for name in entry)
    settable = [name for name in names if re.fullmatch(r"\w+", name)]
    computed = [name for name in names if name not in settable]
    needs = ", ".join(
        f"{needing} needs {' and '.join(entry)}" for needing, entry in needed.items()
    )
    if computed and not settable:
        return FormatError(
            f"{source}: {needs}: is made by a shell, and nothing is run; write its value"
        )
    options = " ".join(f"--set {name}=VALUE" for name in settable)
    return FormatError(
        f"{source}: {needs}; only the run's environment has them: give {options}"
    )


def _find_yaml_flags(text: str, source: str, values: Mapping[str, str]) -> FlagSet:
    """Return the flags of `MODEL_ARGS`: lines `--flag: value`.

    Raises:
        FormatError: If a flag is there twice with two values.
    """
    flags = FlagSet()
    for number, line in enumerate(text.splitlines(), start=1):
        match = YAML_LINE.fullmatch(re.sub(r"(^|\s)#.*", "", line).rstrip())
        if match is None:
            continue
        name = match[1].replace("_", "-")
        value = match[2].strip()
        if " --" in value:
            words = [literal(word, number) for word in line.split()]
            _add_words(flags, words)
            continue
        missing: list[str] = []

        def put(found: re.Match[str], missing: list[str] = missing) -> str:
            variable = found[1] or found[3]
            if variable in values:
                return values[variable]
            if found[2] is not None:
                return found[2]
            missing.append(variable)
            return found[0]

        value = YAML_VALUE.sub(put, value).strip("'\"") or "true"
        substitution = re.search(r"\$\(|`", value)
        if substitution is not None:
            missing.append(value[:60])
        if flags.values.get(name, value) != value and is_counted(name):
            reason = f"{value[:40]}: was {flags.values[name][:40]} before"
            raise fault(f"{source}: line {number}", name, reason)
        flags.values[name] = value
        flags.lines[name] = number
        if missing:
            flags.missing[name] = tuple(missing)
    return flags
