"""Words and values of a shell: expansions of variables, arithmetic, and what `$(...)` prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from tree_sitter import Node

from gnnplace.errors import FormatError
from gnnplace.launch.shell.arithmetic import compute
from gnnplace.launch.shell.patterns import expand_operator
from gnnplace.launch.shell.source import Source
from gnnplace.launch.shell.values import (
    Text,
    TextSegment,
    find_names,
    join,
    literal,
    make_unknown_text,
    plain,
    split_words,
    with_quotes,
)

MOST_STEPS = 100_000  # statements and words of a script
LONGEST = 1 << 20  # letters of a value
MOST_PARTS = 10_000  # segments of a text, words of an array
EXPANSIONS = (
    "simple_expansion",
    "expansion",
    "command_substitution",
    "arithmetic_expansion",
    "process_substitution",
)
NO_WORDS = (
    "variable_assignment",
    "file_redirect",
    "herestring_redirect",
    "heredoc_redirect",
)
"""Children of a command that are none of its words."""
Value = Text | list[Text] | dict[str, Text]
"""A text, an array, or an array by names. An array is never changed in place."""


@dataclass
class ShellState:
    """The variables and arguments at one place of the script."""

    variables: dict[str, Value] = field(default_factory=dict)
    arguments: list[Text] | None = None
    has_ended: bool = False
    loop_ended: bool = False

    def copy(self) -> ShellState:
        """Return a state that changes on its own."""
        return replace(self, variables=dict(self.variables))


class Expander:
    """An evaluator of the words and values that nodes of a script stand for.

    Attributes:
        path: The script.
        values: What the caller gave, by name.
        state: Variables and arguments at the place that is followed.
        defaults: Defaults of the script that counted, by variable.
        source: What is followed: the script, a file beside it, the text of an `eval`.
        arguments: Arguments of the script that the caller gave, by number.
    """

    def __init__(self, path: str, values: Mapping[str, str]) -> None:
        self.path = path
        self.values = dict(values)
        self.state = ShellState()
        self.defaults: dict[str, str] = {}
        self.source = Source.of_file("")
        self.steps = 0
        arguments = [name for name in values if re.fullmatch("[1-9][0-9]?", name)]
        self.arguments = {int(name): values[name] for name in arguments}

    def run(self, node: Node) -> None:
        """Follow a statement."""
        raise NotImplementedError

    def step(self) -> None:
        """Count a step.

        Raises:
            FormatError: If there are too many.
        """
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise FormatError(f"{self.path}: has more steps than can be followed")

    def set(self, name: str, value: Value) -> None:
        """Set a variable, unless the caller named its value."""
        if name in self.values:
            return
        if (
            isinstance(value, tuple)
            and len(value) == 1
            and value[0].unknown is not None
        ):
            unknown = value[0].unknown
            anonymous = all(not re.fullmatch(r"[A-Za-z_]\w*", n) for n in unknown.names)
            if anonymous and not unknown.options:
                # `TP=$1` and `GPUS=$(nvidia-smi ...)`: asked for by the name of the variable.
                value = make_unknown_text([name], value[0].line)
        num_letters = 0
        if isinstance(value, tuple):
            num_letters = sum(len(part.text) for part in value)
        if len(value) > MOST_PARTS or num_letters > LONGEST:
            raise FormatError(f"{self.path}: {name}: is longer than can be followed")
        self.state.variables[name] = value

    def heredoc(self, node: Node) -> Text:
        """Return the text of a heredoc, its variables put in unless its word is quoted."""
        start = next((c for c in node.children if c.type == "heredoc_start"), None)
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        if body is None:
            return ()
        is_raw = start is not None and self.source.text(start)[:1] in ("'", '"', "\\")
        if is_raw:
            return self.lines(self.source.text(body), body.start_byte)
        return self.pieces(body, body.start_byte, body.end_byte, in_quotes=True)

    def assign_number(self, node: Node) -> None:
        """Follow an assignment of arithmetic."""
        target = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if target is None or value is None:
            return
        number = self.compute_node(value)
        line = self.line(node)
        if isinstance(number, int):
            text = literal(str(number), line)
        else:
            text = number
        self.set(self.source.text(target), text)

    def compute_node(self, node: Node) -> int | Text:
        """Return the value of an arithmetic expression; assignments in it are made."""
        if node.type == "variable_assignment":
            self.assign_number(node)
            return 1
        raw = self.raw(node)
        if not isinstance(raw, str):
            return raw
        return self.compute_text(raw, self.line(node))

    def raw(self, node: Node) -> str | Text:
        """Return the letters of arithmetic with `$` put in; what is unknown as a text."""
        text: Text = ()
        position = node.start_byte
        for child in list_expansions(node):
            text += literal(
                self.source.slice(position, child.start_byte), self.line(node)
            )
            text += self.expand(child)
            position = child.end_byte
        text += literal(self.source.slice(position, node.end_byte), self.line(node))
        letters = plain(text)
        if letters is None:
            return text
        return letters

    def compute_text(self, text: str, line: int = 0) -> int | Text:
        """Return the value of arithmetic in letters; `NAME=...` and `NAME++` are made."""
        text = text.strip()
        assignment = re.fullmatch(
            r"([A-Za-z_]\w*)\s*([-+*/]?)=(?!=)(.*)", text, re.DOTALL
        )
        step = re.fullmatch(
            r"([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*)", text
        )
        name = ""
        if assignment is not None:
            name = assignment[1]
            if assignment[2]:
                text = f"{name}{assignment[2]}({assignment[3]})"
            else:
                text = assignment[3]
        elif step is not None:
            name = step[1] or step[4]
            text = f"{name}{(step[2] or step[3])[0]}1"
        missing: list[str] = []

        def value_of(variable: str) -> int:
            value = self.variable(variable, line)
            letters = plain(value)
            if letters is None:
                missing.extend(find_names(value))
                return 1
            if re.fullmatch(r"\s*-?\d+\s*", letters):
                return int(letters)
            return 0

        try:
            number = compute(text, value_of)
        except (ValueError, RecursionError):
            return make_unknown_text(missing or [f"$(({text[:40]}))"], line)
        if missing:
            return make_unknown_text(missing, line)
        if name:
            self.set(name, literal(str(number), line))
        return number

    def line(self, node: Node) -> int:
        """Return the line that a node begins on."""
        return self.source.line(node.start_byte)

    def lines(self, text: str, offset: int, *, quoted: bool = True) -> Text:
        """Return letters as segments, one for each line of the script."""
        segments: list[TextSegment] = []
        for piece in text.splitlines(keepends=True):
            line = self.source.line(offset)
            segments.append(TextSegment(text=piece, line=line, quoted=quoted))
            offset += len(piece.encode())
        return tuple(segments)

    def words(self, node: Node) -> list[Text]:
        """Return the words that a node makes in a command."""
        self.step()
        if node.type in ("comment", "file_redirect", "herestring_redirect", "&", ";"):
            return []
        array = self.array_expansion(node)
        if array is not None:
            is_quoted = node.type == "string"
            if is_quoted:
                return [with_quotes(word, quoted=True) for word in array]
            return [
                w
                for word in array
                for w in split_words(with_quotes(word, quoted=False))
            ]
        if node.type == "brace_expression":
            return [literal(self.source.text(node), self.line(node))]
        return split_words(self.value(node))

    def command_words(self, node: Node) -> list[Text]:
        """Return the words of a command, its name first, without redirections."""
        words: list[Text] = []
        for child in node.children:
            if child.type in NO_WORDS:
                continue
            words += self.words(
                child.children[0] if child.type == "command_name" else child
            )
        return words

    def array_expansion(self, node: Node) -> list[Text] | None:
        """Return the words of `${X[@]}`, `"${X[@]}"`, `$@` and `"$@"`, None for others."""
        inner = node
        if node.type == "string":
            named = [c for c in node.children if c.is_named]
            if len(named) != 1 or named[0].end_byte - named[0].start_byte != (
                node.end_byte - node.start_byte - 2
            ):
                return None
            inner = named[0]
        text = self.source.text(inner)
        if text in ("$@", "$*", "${@}", "${*}"):
            return self.all_arguments()
        match = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[[@*]\](?::(\d+))?\}", text)
        if match is None or (node.type == "string" and "[*]" in text):
            return None
        value = self.state.variables.get(match[1])
        if value is None:
            return [make_unknown_text([match[1]], self.line(node))]
        words = as_items(value)
        return words[int(match[2] or 0) :]

    def all_arguments(self) -> list[Text]:
        """Return the words of `$@`; none where the caller gave none."""
        if self.state.arguments is not None:
            return self.state.arguments
        count = max(self.arguments, default=0)
        return [literal(self.arguments.get(k + 1, ""), 0) for k in range(count)]

    def value(self, node: Node) -> Text:
        """Return the text of a word, a string or an expansion."""
        self.step()
        kind = node.type
        if kind in (
            "word",
            "variable_name",
            "extglob_pattern",
            "regex",
            "test_operator",
        ):
            text = re.sub(
                r"\\(\n|.)",
                lambda m: "" if m[1] == "\n" else m[1],
                self.source.text(node),
                flags=re.DOTALL,
            )
            named = [c for c in node.children if c.is_named]
            if named:
                return self.pieces(
                    node, node.start_byte, node.end_byte, in_quotes=False
                )
            return literal(text, self.line(node))
        if kind == "raw_string":
            return self.lines(self.source.text(node)[1:-1], node.start_byte + 1)
        if kind == "ansi_c_string":
            text = self.source.text(node)[2:-1]
            return literal(
                text.replace("\\n", "\n").replace("\\t", "\t"), self.line(node)
            )
        if kind in ("string", "translated_string"):
            start = node.start_byte + (2 if kind == "translated_string" else 1)
            pieces = self.pieces(node, start, node.end_byte - 1, in_quotes=True)
            return pieces or literal("", self.line(node))
        if kind == "concatenation":
            return tuple(part for child in node.children for part in self.value(child))
        if kind in EXPANSIONS:
            return with_quotes(self.expand(node), quoted=False)
        return literal(self.source.text(node), self.line(node))

    def pieces(self, node: Node, start: int, end: int, *, in_quotes: bool) -> Text:
        """Return the letters between two bytes with the expansions among them put in.

        Args:
            node: The node, whose children are the expansions.
            start: The first byte.
            end: The byte after the last.
            in_quotes: Whether the expansions stand in double quotes, so that blanks split no words.
        """
        text: Text = ()
        position = start
        for child in node.children:
            if child.type in EXPANSIONS and child.start_byte >= position:
                # The parser counts what stands before `$` to the expansion: blanks, a `\\`.
                offset = child.start_byte
                while offset < child.end_byte and self.source.data[offset] not in b"$`":
                    offset += 1
                text += self.letters(position, offset)
                text += with_quotes(self.expand(child), quoted=in_quotes)
                position = child.end_byte
        return text + self.letters(position, end)

    def letters(self, start: int, end: int) -> Text:
        """Return quoted letters, their escapes resolved."""
        segments = []
        for segment in self.lines(self.source.slice(start, end), start):
            letters = re.sub(
                r"\\(\n|[$`\"\\])", lambda m: "" if m[1] == "\n" else m[1], segment.text
            )
            segments.append(replace(segment, text=letters))
        return tuple(segments)

    def expand(self, node: Node) -> Text:
        """Return the text of `$X`, `${...}`, `$(...)` or `$((...))`."""
        if node.type == "simple_expansion":
            return self.variable(
                self.source.text(node).partition("$")[2], self.line(node)
            )
        if node.type == "arithmetic_expansion":
            return self.arithmetic(node)
        if node.type in ("command_substitution", "process_substitution"):
            return self.substitute(node)
        return self.expand_braces(node)

    def arithmetic(self, node: Node) -> Text:
        """Return the text of `$((...))`, whose inner letters begin three after its `$`."""
        line = self.line(node)
        start = self.source.data.index(b"$", node.start_byte) + 3
        text: Text = ()
        for child in list_expansions(node):
            text += literal(self.source.slice(start, child.start_byte), line)
            text += self.expand(child)
            start = child.end_byte
        text += literal(self.source.slice(start, node.end_byte - 2), line)
        letters = plain(text)
        if letters is None:
            return make_unknown_text(find_names(text), line)
        number = self.compute_text(letters, line)
        if isinstance(number, int):
            return literal(str(number), line)
        return number

    def variable(self, name: str, line: int) -> Text:
        """Return the value of a variable, an array's first word, or what is not known."""
        if re.fullmatch("[0-9]+", name):
            return self.argument(int(name), line)
        if name in ("@", "*"):
            return join(self.all_arguments())
        if name == "#":
            if self.state.arguments is not None or self.arguments:
                return literal(str(len(self.all_arguments())), line)
            return make_unknown_text(["#"], line)
        value = self.state.variables.get(name)
        if value is None:
            return make_unknown_text([name], line)
        if isinstance(value, list):
            if value:
                return value[0]
            return ()
        if isinstance(value, dict):
            return ()
        return value

    def argument(self, index: int, line: int) -> Text:
        """Return `$1` and its like; `$0` is the script."""
        if index == 0:
            return literal(self.path, line)
        if self.state.arguments is not None:
            arguments = self.state.arguments
            if index <= len(arguments):
                return arguments[index - 1]
            return ()
        if index in self.arguments:
            return literal(self.arguments[index], 0)
        return make_unknown_text([str(index)], line)

    def expand_braces(self, node: Node) -> Text:
        """Return the text of `${...}`."""
        line = self.line(node)
        children = [c for c in node.children if c.type not in ("${", "}")]
        if not children:
            return ()
        first = children[0]
        text = self.source.text(node).lstrip("\\ \n\t")
        if first.type in ("#", "!"):
            return self.expand_prefixed(first.type, text[3:-1], line)
        name = self.source.text(first)
        if first.type == "subscript":
            value = self.expand_subscript(first)
        else:
            value = self.variable(name, line)
        if len(children) == 1:
            return value
        operator = self.source.text(children[1])
        operands = children[2:]
        if operator in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return self.expand_default(name, value, operator, operands, first)
        letters = plain(value)
        if letters is None:
            return make_unknown_text(find_names(value), line)
        operand = plain(
            self.pieces(node, children[1].end_byte, node.end_byte - 1, in_quotes=True)
        )
        if operand is None:
            return make_unknown_text(find_names(value) or [name], line)
        if operator == ":":
            operand = operand.strip()
        expanded = expand_operator(letters, operator, operand)
        if expanded is None:
            return make_unknown_text([name], line)
        return literal(expanded, line)

    def expand_default(
        self,
        name: str,
        value: Text,
        operator: str,
        operands: Sequence[Node],
        first: Node,
    ) -> Text:
        """Return the value of `${X:-v}` and its like. A default that counts is recorded.

        Args:
            name: The variable.
            value: Its value.
            operator: The letters between name and default, such as ":-".
            operands: Nodes of the default.
            first: A node on the line of the expansion.
        """
        line = self.line(first)
        default: Text = ()
        if operands:
            start = operands[0].start_byte
            end = operands[-1].end_byte
            single = operands[0] if len(operands) == 1 else None
            if single is not None:
                default = self.value(single)
            else:
                default = tuple(
                    part for child in operands for part in self.value(child)
                )
            default = default or literal(self.source.slice(start, end), line)
        letters = plain(value)
        is_unset = self.is_environment(name, value)
        if operator in (":+", "+"):
            return default if letters else () if is_unset or letters == "" else value
        if operator in (":?", "?"):
            return value
        if letters is not None and (letters or operator in ("-", "=")):
            return value
        if letters is None and not is_unset:
            return value
        if is_unset:
            shown = plain(default)
            self.defaults.setdefault(name, "?" if shown is None else shown[:40])
        if operator in (":=", "="):
            self.set(name, default)
        return default

    def is_environment(self, name: str, value: Text) -> bool:
        """Return whether a value is unknown because nothing sets the variable."""
        if len(value) == 1:
            unknown = value[0].unknown
        else:
            unknown = None
        return unknown is not None and unknown.names == (name,) and not unknown.options

    def expand_prefixed(self, sign: str, name: str, line: int) -> Text:
        """Return `${#X}`, `${#X[@]}` and `${!X}`."""
        base = re.sub(r"\[.*\]$", "", name)
        value = self.state.variables.get(base)
        if sign == "!":
            target = plain(self.variable(base, line))
            if isinstance(value, dict):
                return join([literal(key, line) for key in value])
            if target is None:
                return make_unknown_text([base], line)
            return self.variable(target, line)
        if value is None:
            return make_unknown_text([base], line)
        if isinstance(value, (list, dict)):
            return literal(str(len(value)), line)
        letters = plain(value)
        if letters is None:
            return make_unknown_text(find_names(value), line)
        return literal(str(len(letters)), line)

    def expand_subscript(self, node: Node) -> Text:
        """Return `X[K]` and `X[@]`."""
        name_node = node.child_by_field_name("name")
        index_node = node.child_by_field_name("index")
        line = self.line(node)
        if name_node is None or index_node is None:
            return ()
        name = self.source.text(name_node)
        value = self.state.variables.get(name)
        if value is None:
            return make_unknown_text([name], line)
        key = plain(self.value(index_node))
        if key in ("@", "*"):
            return join(as_items(value))
        if isinstance(value, dict):
            return value.get(key or "", ())
        if key is not None:
            number = self.compute_text(key, line)
        else:
            number = None
        items = as_items(value)
        if not isinstance(number, int):
            names = find_names(self.value(index_node)) or (name,)
            return make_unknown_text(names, line)
        if -len(items) <= number < len(items):
            return items[number]
        return ()

    def substitute(self, node: Node) -> Text:
        """Return what `$(...)` prints, where that needs no running."""
        line = self.line(node)
        inner = [c for c in node.children if c.is_named and c.type != "comment"]
        shown = " ".join(self.source.text(node).lstrip("\\ \n\t").split())[:60]
        if shown.startswith("$((") and shown.endswith("))"):
            # In a heredoc the parser takes it for a command.
            return self.arithmetic(node)
        if not inner:
            return ()
        start = self.state.copy()
        for statement in inner[:-1]:
            self.run(statement)
        text = self.printed(inner[-1])
        self.state = start
        if text is None:
            return make_unknown_text([shown], line)
        letters = plain(text)
        if letters is not None:
            return (*with_quotes(self.trim_newlines(text), quoted=False),)
        return text

    def trim_newlines(self, text: Text) -> Text:
        """Return a text without the newlines at its end."""
        segments = list(text)
        while segments and not segments[-1].text.rstrip("\n"):
            segments.pop()
        if segments:
            segments[-1] = replace(segments[-1], text=segments[-1].text.rstrip("\n"))
        return tuple(segments)

    def printed(self, node: Node) -> Text | None:
        """Return what a statement prints, or None if that is not known."""
        line = self.line(node)
        if node.type == "redirected_statement":
            heredoc = next(
                (c for c in node.children if c.type == "heredoc_redirect"), None
            )
            body = node.child_by_field_name("body")
            if (
                heredoc is not None
                and body is not None
                and self.source.text(body) == "cat"
            ):
                return self.heredoc(heredoc)
            return None if body is None else self.printed(body)
        if node.type == "list" and node.children[1].type == "&&":
            first = node.children[0]
            last = node.children[-1]
            # `cd FOLDER && pwd` prints the folder.
            if self.source.text(first).startswith("cd ") and self.source.text(
                last
            ).startswith("pwd"):
                words = self.words(first.children[1]) if first.child_count > 1 else []
                return words[0] if words else None
            return self.printed(last)
        if node.type == "pipeline":
            return self.find_piped(node)
        if node.type != "command":
            return None
        words = self.command_words(node)
        name = plain(words[0]) if words else None
        arguments = words[1:]
        if name == "pwd":
            return literal(".", line)
        if name == "echo":
            return join([w for w in arguments if plain(w) not in ("-n", "-e")])
        if (
            name == "printf"
            and arguments
            and plain(arguments[0]) in ("%s", "%s\\n", "%d")
        ):
            return join(arguments[1:])
        letters = [plain(word) for word in arguments]
        if name is None or any(text is None for text in letters):
            is_known = name in (
                "dirname",
                "basename",
                "realpath",
                "readlink",
                "expr",
                "seq",
            )
            if is_known:
                return make_unknown_text(find_names(join(arguments)), line)
            return None
        return evaluate_printed(
            name, [text or "" for text in letters], line, self.compute_text
        )

    def find_piped(self, node: Node) -> Text | None:
        """Return what `echo ... | bc` prints, and `| tr`, `| wc -w` of what is known."""
        stages = [c for c in node.children if c.is_named]
        text = self.printed(stages[0])
        if text is None:
            return None
        if plain(text) is None:
            return make_unknown_text(find_names(text), self.line(node))
        letters = plain(text) or ""
        for stage in stages[1:]:
            words = [plain(word) or "" for word in self.command_words(stage)]
            if words[:1] == ["bc"]:
                number = self.compute_text(letters, self.line(node))
                if not isinstance(number, int):
                    return None
                letters = str(number)
            elif (
                words[:1] == ["tr"]
                and len(words) == 3
                and len(words[1]) == len(words[2]) == 1
            ):
                letters = letters.replace(words[1], words[2])
            elif words[:2] == ["wc", "-w"]:
                letters = str(len(letters.split()))
            elif words[:1] == ["xargs"] and len(words) == 1:
                letters = " ".join(letters.split())
            else:
                return None
        return literal(letters, self.line(node))


def list_expansions(node: Node) -> Iterator[Node]:
    """Yield the expansions inside of a node, the outermost alone."""
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        else:
            yield from list_expansions(child)


def as_text(value: Value) -> Text:
    """Return a value as one text, an array with a blank between its words."""
    if isinstance(value, dict):
        return ()
    if isinstance(value, list):
        return join(value)
    return value


def as_items(value: Value) -> list[Text]:
    """Return the items of an array, or a text as its only one."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        return list(value)
    return as_words(value)


def as_words(value: Value) -> list[Text]:
    """Return a text as the one word of an array."""
    if isinstance(value, tuple) and value:
        return [value]
    return []


def evaluate_printed(
    name: str,
    arguments: list[str],
    line: int,
    compute_text: Callable[[str, int], int | Text],
) -> Text | None:
    """Return what a command on paths or numbers prints, or None if the command is not known.

    Args:
        name: The command: dirname, basename, realpath, readlink, expr or seq.
        arguments: Its arguments.
        line: Line that the printed letters count as standing on.
        compute_text: Computes an arithmetic expression on a line.
    """
    paths = [word for word in arguments if not word.startswith("-")]
    if name == "dirname" and paths:
        return literal(str(PurePosixPath(paths[0]).parent), line)
    if name == "basename" and paths:
        base = PurePosixPath(paths[0]).name
        return literal(base.removesuffix(paths[1]) if len(paths) > 1 else base, line)
    if name in ("realpath", "readlink") and paths:
        return literal(paths[0], line)
    if name == "expr":
        number = compute_text(" ".join(arguments), line)
        if isinstance(number, int):
            return literal(str(number), line)
        return number
    if name == "seq" and 1 <= len(paths) <= 3 and all(p.isdigit() for p in paths):
        numbers = [int(p) for p in paths]
        start = numbers[0] if len(numbers) > 1 else 1
        step = numbers[1] if len(numbers) == 3 else 1
        if not step or (numbers[-1] - start) // step > 1000:
            return None
        return literal(
            " ".join(map(str, range(start, numbers[-1] + 1, step))), line, quoted=False
        )
    return None
