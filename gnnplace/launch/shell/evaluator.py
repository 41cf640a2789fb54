"""`evaluate`: the commands that a script would run, with their words. Nothing is run.

Each statement is followed on values that may be unknown. A condition that is not known is followed
both ways, and what differs after it is unknown, with both texts as its options; a branch that ends
the script is not one that trains. A loop over known words is followed word by word. Commands are
taken to succeed. Time and memory are bounded by `MOST_STEPS` and `LONGEST`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tree_sitter import Node

from gnnplace.errors import FormatError
from gnnplace.launch.neighbours import read_neighbour
from gnnplace.launch.shell.conditions import (
    Condition,
    evaluate_test_tokens,
    evaluate_test_words,
)
from gnnplace.launch.shell.expansions import (
    Expander,
    ShellState,
    Value,
    as_items,
    as_text,
    as_words,
)
from gnnplace.launch.shell.patterns import matches
from gnnplace.launch.shell.source import Source
from gnnplace.launch.shell.values import (
    Text,
    TextSegment,
    find_names,
    join,
    literal,
    make_unknown_text,
    merge,
    plain,
    with_quotes,
)

MOST_ROUNDS = 64  # rounds of a loop that are followed
DEEPEST = 12  # files, functions and texts inside of each other
SLURM = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
UNREMARKABLE = re.compile(
    r"(RANK|ADDR|PORT|PATH|DIR|HOME|LOG|HOST|USER|PYTHON|NCCL|CUDA|OMP|NAME|PROJECT|ROOT|SEED|SAVE|"
    r"LOAD|DATA|TOKENIZER|ENDPOINT|VERSION|IMAGE|CACHE)",
    re.IGNORECASE,
)
"""Names of variables whose defaults say nothing of a step."""
SHELLS = ("bash", "sh", "zsh", "dash", "sbatch")
WRITERS = ("cat", "tee", "echo", "printf")


@dataclass(frozen=True)
class ShellCommand:
    """A command that a script would run.

    Attributes:
        words: The words, the command's name first.
        line: Line that it stands on; 0 in a file beside the script.
        conditions: Names that decide whether it runs; none where it does.
    """

    words: tuple[Text, ...]
    line: int
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShellRun:
    """The outcome of following a script without running anything.

    Attributes:
        commands: Those that it would run, in order.
        files: Texts that it would write, by path.
        notes: What was assumed or could not be followed, each in one line.
        unread: Files that it sources and that are not beside it.
        sources: Names of the files that were read with it.
        variables: What its variables hold at its end, arrays with a blank between their words.
    """

    commands: tuple[ShellCommand, ...]
    files: Mapping[str, Text]
    notes: tuple[str, ...]
    unread: tuple[str, ...]
    sources: tuple[str, ...]
    variables: Mapping[str, Text]


def evaluate(text: str, path: str, values: Mapping[str, str] | None = None) -> ShellRun:
    """Follow a script.

    Args:
        text: The script.
        path: The script's file, for `$0`, files beside it, and errors.
        values: Values of the environment and, as "1", "2", ..., of arguments. A variable that is
            named here keeps its value whatever the script assigns.

    Raises:
        FormatError: If the script is too long to follow.
    """
    evaluator = _Evaluator(path, values or {})
    try:
        evaluator.run_file(text)
    except RecursionError:
        raise FormatError(f"{path}: nested too deeply to follow") from None
    return evaluator.result()


class _Evaluator(Expander):
    """The state of following one script."""

    def __init__(self, path: str, values: Mapping[str, str]) -> None:
        super().__init__(path, values)
        self.commands: list[ShellCommand] = []
        self.files: dict[str, Text] = {}
        self.notes: list[str] = []
        self.unread: list[str] = []
        self.sources: list[str] = []
        self.functions: dict[str, tuple[Source, Node]] = {}
        self.conditions: list[str] = []
        self.depth = 0
        self.placeholder_count = 0
        self.handlers: dict[str, Callable[[Node], None]] = {
            "variable_assignment": self._run_assignment,
            "variable_assignments": self._run_children,
            "declaration_command": self._run_declaration,
            "command": self._run_command,
            "redirected_statement": self._run_redirected,
            "pipeline": self._run_children,
            "list": self._run_list,
            "if_statement": self._run_if,
            "case_statement": self._run_case,
            "for_statement": self._run_for_loop,
            "while_statement": self._run_loop,
            "c_style_for_statement": self._run_loop,
            "function_definition": self._run_function,
            "compound_statement": self._run_compound,
            "do_group": self._run_children,
            "subshell": self._run_subshell,
            "ERROR": self._run_children,
            "negated_command": self._run_children,
        }

    def run_file(self, text: str) -> None:
        """Follow the script itself, with what its Slurm head sets."""
        for name, value in _slurm_values(text).items():
            self.state.variables[name] = literal(value, 0)
        for name, value in self.values.items():
            self.state.variables[name] = literal(value, 0)
        self._run_source(Source.of_file(text))

    def result(self) -> ShellRun:
        """Return what the script would do, as far as it was followed."""
        notes = list(dict.fromkeys(self.notes))
        if self.defaults:
            pairs = [
                f"{name}={value}"
                for name, value in self.defaults.items()
                if UNREMARKABLE.search(name) is None
            ]
            if pairs:
                notes.append(
                    f"defaults of the script, where nothing is set: {', '.join(pairs)}"
                )
        return ShellRun(
            commands=tuple(self.commands),
            files=self.files,
            notes=tuple(notes),
            unread=tuple(dict.fromkeys(self.unread)),
            sources=tuple(self.sources),
            variables={
                name: with_quotes(as_text(value), quoted=False)
                for name, value in self.state.variables.items()
            },
        )

    # Statements.

    def _run_source(self, source: Source) -> None:
        outer = self.source
        self.source = source
        self.depth += 1
        if self.depth <= DEEPEST:
            self._run_children(source.root)
        else:
            self.notes.append("commands within commands: followed 12 deep")
        self.depth -= 1
        self.source = outer

    def _run_children(self, node: Node) -> None:
        for child in node.children:
            self.run(child)

    def run(self, node: Node) -> None:
        """Follow a statement."""
        if self.state.has_ended or self.state.loop_ended:
            return
        self.step()
        handler = self.handlers.get(node.type)
        if handler is not None:
            handler(node)

    def _run_declaration(self, node: Node) -> None:
        """Follow `export`, `declare`, `local`, `readonly`: their assignments."""
        is_mapping = any(
            "A" in self.source.text(c) for c in node.children if c.type == "word"
        )
        for child in node.children:
            if child.type == "variable_assignment":
                self._assign(child, is_mapping=is_mapping)
            elif child.type in ("string", "concatenation"):
                text = plain(self.value(child)) or ""
                name, equals, value = text.partition("=")
                if equals and re.fullmatch(r"\w+", name):
                    self.set(name, literal(value, self.line(child)))

    def _run_assignment(self, node: Node) -> None:
        self._assign(node)

    def _assign(self, node: Node, *, is_mapping: bool = False) -> None:
        """Follow `NAME=VALUE`, `NAME+=VALUE`, `NAME[K]=VALUE` and `NAME=(...)`."""
        target = node.child_by_field_name("name")
        value_node = node.child_by_field_name("value")
        if target is None:
            return
        appends = any(child.type == "+=" for child in node.children)
        value: Value = ()
        if value_node is not None and value_node.type == "array":
            value = self._array(value_node, is_mapping=is_mapping)
        elif value_node is not None:
            value = self.value(value_node)
        if target.type == "subscript":
            self._set_item(target, value, appends=appends)
            return
        name = self.source.text(target)
        if appends:
            value = self._append_words(name, value)
        elif (
            isinstance(value, tuple)
            and len(value) > 1
            and name not in self.state.variables
        ):
            # `X="$X more"` where nothing has set X: it begins empty.
            value = tuple(part for part in value if not is_variable(part, name))
        self.set(name, value)

    def _array(self, node: Node, *, is_mapping: bool) -> Value:
        """Return the words of `(...)`, by name where they are `[name]=value`."""
        words: list[Text] = []
        items: dict[str, Text] = {}
        for child in node.children:
            if child.type in ("(", ")", "comment"):
                continue
            pair = re.match(r"\[([^\]]*)\]=", self.source.text(child))
            if is_mapping and pair is not None:
                value = self.value(child)
                letters = plain(value)
                key = pair[1].strip("'\"")
                if letters is not None:
                    items[key] = literal(letters.partition("]=")[2], self.line(child))
                else:
                    items[key] = make_unknown_text(find_names(value), self.line(child))
            else:
                words += self.words(child)
        if is_mapping:
            return items
        return words

    def _append_words(self, name: str, value: Value) -> Value:
        previous = self.state.variables.get(name, ())
        if isinstance(previous, dict) and isinstance(value, dict):
            return {**previous, **value}
        if isinstance(value, list):
            return [
                *(previous if isinstance(previous, list) else as_words(previous)),
                *value,
            ]
        if isinstance(previous, list):
            return [
                *previous[:-1],
                (*(previous[-1] if previous else ()), *as_text(value)),
            ]
        return (*as_text(previous), *as_text(value))

    def _set_item(self, target: Node, value: Value, *, appends: bool) -> None:
        name_node = target.child_by_field_name("name")
        index_node = target.child_by_field_name("index")
        if name_node is None or index_node is None:
            return
        name = self.source.text(name_node)
        key = plain(self.value(index_node)) or ""
        array = self.state.variables.get(name, [])
        text = as_text(value)
        if isinstance(array, dict) or not key.lstrip("-").isdigit():
            if isinstance(array, dict):
                items = dict(array)
            else:
                items = {}
            items[key] = (*items.get(key, ()), *text) if appends else text
            self.set(name, items)
            return
        if isinstance(array, list):
            words = list(array)
        else:
            words = as_words(array)
        index = int(key)
        if 0 <= index < 10_000:
            words += [()] * (index + 1 - len(words))
            words[index] = (*words[index], *text) if appends else text
            self.set(name, words)

    def _run_if(self, node: Node) -> None:
        """Follow `if`: the branch that is known to be taken, or all that may be."""
        clauses: list[tuple[list[Node], list[Node]]] = []
        otherwise: list[Node] = []
        condition: list[Node] = []
        body: list[Node] = []
        is_body = False
        for child in node.children:
            if child.type == "then":
                is_body = True
            elif child.type == "elif_clause":
                clauses.append((condition, body))
                condition, body = _split_clause(child)
            elif child.type == "else_clause":
                otherwise = [c for c in child.children if c.type != "else"]
            elif child.type not in ("if", "fi"):
                (body if is_body else condition).append(child)
        clauses.append((condition, body))
        self._run_branches(clauses, otherwise)

    def _run_branches(
        self, clauses: Sequence[tuple[list[Node], list[Node]]], otherwise: list[Node]
    ) -> None:
        if not clauses:
            self._run_all(otherwise)
            return
        (condition, body), later = clauses[0], clauses[1:]
        status = self._follow_all(condition)
        if status.holds is True:
            self._run_all(body)
        elif status.holds is False:
            self._run_branches(later, otherwise)
        else:
            self._fork(
                status.names,
                lambda: self._run_all(body),
                lambda: self._run_branches(later, otherwise),
            )

    def _run_all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.run(node)

    def _fork(
        self,
        names: Sequence[str],
        first: Callable[[], object],
        second: Callable[[], object],
    ) -> None:
        """Follow two branches from one state, and keep what both leave."""
        start = self.state
        outer = list(self.conditions)
        self.conditions = [*outer, *(name for name in names if name not in outer)]
        self.state = start.copy()
        first()
        after_first = self.state
        self.state = start.copy()
        second()
        after_second = self.state
        self.conditions = outer
        self.state = _merge_states(after_first, after_second, names)

    def _run_case(self, node: Node) -> None:
        """Follow `case`: the first pattern that matches a known word, or all that may."""
        value_node = node.child_by_field_name("value")
        if value_node is None:
            return
        text = self.value(value_node)
        word = plain(text)
        items = [child for child in node.children if child.type == "case_item"]
        if word is not None:
            for item in items:
                patterns, body = self._case_parts(item)
                if any(matches(word, pattern) for pattern in patterns):
                    self._run_all(body)
                    return
            return
        self._run_cases(items, find_names(text))

    def _run_cases(self, items: Sequence[Node], names: Sequence[str]) -> None:
        if not items:
            return
        _, body = self._case_parts(items[0])
        self._fork(
            names,
            lambda: self._run_all(body),
            lambda: self._run_cases(items[1:], names),
        )

    def _case_parts(self, item: Node) -> tuple[list[str], list[Node]]:
        """Return the patterns and the statements of one item."""
        patterns: list[str] = []
        body: list[Node] = []
        is_body = False
        for child in item.children:
            if child.type == ")" and not is_body:
                is_body = True
            elif is_body:
                body.append(child)
            elif child.type not in ("(", "|"):
                is_quoted = child.type in ("string", "raw_string")
                if is_quoted:
                    letters = plain(self.value(child))
                else:
                    letters = None
                patterns.append(re.escape(letters) if letters is not None else "")
                if letters is None:
                    raw = plain(self.value(child)) or self.source.text(child)
                    patterns[-1] = f"glob:{raw}"
        return patterns, body

    def _run_for_loop(self, node: Node) -> None:
        """Follow `for NAME in WORDS`, word by word where they are known."""
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return
        name = self.source.text(variable)
        words: list[Text] = []
        has_words = False
        for child in node.children:
            if child.type == "in":
                has_words = True
            elif has_words and child.type not in (";", "do_group", "\n"):
                words += self.words(child)
        if any(plain(word) is None for word in words) or len(words) > MOST_ROUNDS:
            self.set(name, make_unknown_text([name], self.line(node)))
            self._run_children(body)
            self.state.loop_ended = False
            return
        for word in words:
            self.set(name, with_quotes(word, quoted=True))
            self._run_children(body)
            if self.state.loop_ended:
                self.state.loop_ended = False
                return

    def _run_loop(self, node: Node) -> None:
        """Follow `while`, `until` and `for ((...))` as long as the condition is known."""
        body = node.child_by_field_name("body")
        condition = node.child_by_field_name("condition")
        start = node.child_by_field_name("initializer")
        update = node.child_by_field_name("update")
        if body is None or condition is None:
            return
        if start is not None:
            self.compute_node(start)
        is_until = node.children[0].type == "until"
        is_arithmetic = node.type == "c_style_for_statement"
        for _ in range(MOST_ROUNDS):
            if is_arithmetic:
                status = self._arithmetic_status(condition)
            else:
                status = self._status(condition)
            if status.holds is None:
                if "#" in status.names or (
                    self.state.arguments is None and "@" in status.names
                ):
                    self.notes.append("arguments of the script: none are assumed")
                else:
                    self._fork(
                        status.names, lambda: self._run_children(body), lambda: None
                    )
                return
            if status.holds is is_until:
                return
            self._run_children(body)
            if self.state.loop_ended:
                self.state.loop_ended = False
                return
            if update is not None:
                self.compute_node(update)
            if self.state.has_ended:
                return

    def _run_function(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.source.text(name)] = (self.source, body)

    def _run_subshell(self, node: Node) -> None:
        """Follow `( ... )`: what it sets is not seen outside."""
        state = self.state.copy()
        self._run_children(node)
        self.state = state

    def _run_list(self, node: Node) -> None:
        self._status(node)

    def _run_compound(self, node: Node) -> None:
        if node.children and node.children[0].type == "((":
            for child in node.children[1:-1]:
                self.compute_node(child)
            return
        self._run_children(node)

    def _run_redirected(self, node: Node) -> None:
        """Follow a statement, and note the text that it writes to a file."""
        body = node.child_by_field_name("body")
        heredoc = next((c for c in node.children if c.type == "heredoc_redirect"), None)
        target = self._redirect_target(node, heredoc)
        if heredoc is None:
            document = None
        else:
            document = self.heredoc(heredoc)
        if body is None:
            return
        if body.type == "command":
            self._run_command(body, here=document, target=target)
            for child in heredoc.children if heredoc is not None else ():
                if child.type == "pipeline":
                    self.run(child)
            return
        self.run(body)

    def _redirect_target(self, node: Node, heredoc: Node | None) -> str | None:
        """Return the path of `> PATH`, or None if there is none or it is not known."""
        if heredoc is None:
            places = [node]
        else:
            places = [node, heredoc]
        for place in places:
            for child in place.children:
                if child.type != "file_redirect":
                    continue
                signs = [c.type for c in child.children]
                word = child.child_by_field_name("destination")
                if (
                    word is not None
                    and (">" in signs or ">>" in signs)
                    and "2" not in signs
                ):
                    if child.children[0].type == "file_descriptor":
                        continue
                    return _path_text(self.value(word))
        return None

    def _run_command(
        self, node: Node, *, here: Text | None = None, target: str | None = None
    ) -> None:
        """Follow a command: a function, a builtin, or one that is only noted."""
        words = self.command_words(node)
        if not words and any(c.type == "variable_assignment" for c in node.children):
            for child in node.children:
                if child.type == "variable_assignment":
                    self._assign(child)
            return
        if words:
            self._run_words(words, self.line(node), here=here, target=target)

    def _run_words(
        self, words: list[Text], line: int, *, here: Text | None, target: str | None
    ) -> None:
        """Follow a command from its words: a function, a builtin, or one that is only recorded.

        Args:
            words: The words, the command's name first.
            line: Line that the command stands on.
            here: Text of its heredoc, if it has one.
            target: Path of the file that its output goes to, if there is one.
        """
        self.step()
        name = plain(words[0])
        arguments = words[1:]
        if name in self.functions:
            self._call(name, arguments)
        elif name in ("exit", "return", "break", "continue"):
            self._leave(name)
        elif name == "read" and here is not None and arguments:
            self.set(plain(arguments[-1]) or "", here)
        elif name in WRITERS and (target or name == "tee" or here):
            self._write(name, arguments, here=here, target=target)
        elif not self._run_builtin(name, arguments) and not self._run_nested(
            words, here=here
        ):
            command = ShellCommand(
                words=tuple(words), line=line, conditions=tuple(self.conditions)
            )
            self.commands.append(command)

    def _leave(self, name: str) -> None:
        """Follow the end of the script, of a function or of a loop."""
        if name in ("exit", "return"):
            self.state.has_ended = name == "exit" or self.depth <= 1
            self.state.loop_ended = True
        else:
            self.state.loop_ended = name == "break"

    def _run_builtin(self, name: str | None, arguments: list[Text]) -> bool:
        """Follow a command of the shell that changes its state; return whether it is one."""
        if name == "eval":
            self._run_text(join(arguments))
        elif name in ("source", "."):
            self._run_sourced(arguments)
        elif name == "set":
            self._run_set(arguments)
        elif name == "shift":
            self._shift()
        elif name == "unset":
            for word in arguments:
                self.state.variables[plain(word) or ""] = ()
        elif name == "let":
            for word in arguments:
                self.compute_text(plain(word) or "")
        return name in ("eval", "source", ".", "set", "shift", "unset", "let", ":")

    def _call(self, name: str, arguments: list[Text]) -> None:
        """Follow a function with its arguments."""
        source, body = self.functions[name]
        if self.depth > DEEPEST:
            return
        outer_source = self.source
        outer_arguments = self.state.arguments
        self.source = source
        self.state.arguments = arguments
        self.depth += 1
        self._run_children(body)
        self.depth -= 1
        self.source = outer_source
        self.state.arguments = outer_arguments
        self.state.loop_ended = False

    def _run_text(self, text: Text) -> None:
        """Follow a text as `eval` does: its unknown parts stay what they are."""
        placeholders: list[str] = []
        for segment in text:
            if segment.unknown is not None:
                self.placeholder_count += 1
                name = f"__unknown_{self.placeholder_count}"
                self.state.variables[name] = (segment,)
                placeholders.append(f"${{{name}}}")
        self._run_source(Source.of_text(text, placeholders))

    def _run_nested(self, words: list[Text], *, here: Text | None) -> bool:
        """Follow `bash -c TEXT`, `bash FILE` and a heredoc that a shell reads."""
        letters = [plain(word) for word in words]
        for index, word in enumerate(letters[:-1]):
            if word is None or PurePosixPath(word).name not in SHELLS:
                continue
            option = letters[index + 1] or ""
            if re.fullmatch("-[a-z]*c", option) and index + 2 < len(words):
                state = self.state.copy()
                self._run_text(words[index + 2])
                self.state = state
                return True
            if not option.startswith("-") and self._run_script(words[index + 1 :]):
                return True
        first = PurePosixPath(letters[0] or "").name
        if here is not None and first in SHELLS:
            state = self.state.copy()
            self._run_text(here)
            self.state = state
            return True
        return bool(first.endswith(".sh")) and self._run_script(words)

    def _run_script(self, words: Sequence[Text]) -> bool:
        """Follow a script that this one wrote, or that stands beside it."""
        path = _path_text(words[0])
        state = self.state.copy()
        if path in self.files:
            self.state.arguments = list(words[1:])
            self._run_text(self.files[path])
            self.state = state
            return True
        text = self._read_neighbour(path)
        if text is None:
            return False
        self.state.arguments = list(words[1:])
        self._run_source(Source.of_file(text, is_sourced=True))
        self.state = state
        return True

    def _run_sourced(self, arguments: Sequence[Text]) -> None:
        if not arguments:
            return
        path = _path_text(arguments[0])
        text = self._read_neighbour(path)
        if text is None:
            self.unread.append(
                " ".join((PurePosixPath(path).name or path).split())[:80]
            )
            return
        self._run_source(Source.of_file(text, is_sourced=True))

    def _read_neighbour(self, path: str) -> str | None:
        """Return the text of a file in the script's folder, or None if there is none."""
        text = read_neighbour(self.path, path)
        if text is not None:
            name = PurePosixPath(path).name
            self.sources.append(name)
            self.notes.append(f"{name}: beside the script, is read with it")
        return text

    def _run_set(self, arguments: Sequence[Text]) -> None:
        letters = [plain(word) for word in arguments]
        if "--" in letters:
            self.state.arguments = list(arguments[letters.index("--") + 1 :])

    def _shift(self) -> None:
        if self.state.arguments:
            self.state.arguments = self.state.arguments[1:]

    def _write(
        self,
        name: str,
        arguments: Sequence[Text],
        *,
        here: Text | None,
        target: str | None,
    ) -> None:
        """Record the text that `cat`, `tee`, `echo` or `printf` puts into a file.

        Args:
            name: The command.
            arguments: Its arguments.
            here: Text of its heredoc, if it has one.
            target: Path of the file; None: `tee` has it as its last argument.
        """
        if name == "tee" and target is None and arguments:
            target = _path_text(arguments[-1])
        if target is None:
            return
        text = here
        if text is None and name in ("echo", "printf"):
            words = [w for w in arguments if plain(w) not in ("-e", "-n", "-en", "-ne")]
            text = join(words)
        if text is None and name == "cat" and arguments:
            text = self.files.get(_path_text(arguments[0]))
        if text is not None:
            self.files[target] = text

    # Conditions.

    def _follow_all(self, nodes: Sequence[Node]) -> Condition:
        """Return whether the last of some statements succeeds."""
        status = Condition(True)
        for node in nodes:
            if node.type not in (";", "\n", "comment"):
                status = self._status(node, in_condition=True)
        return status

    def _status(self, node: Node, *, in_condition: bool = False) -> Condition:
        """Follow a statement and return whether it succeeds."""
        self.step()
        if node.type == "test_command":
            return self._test(node)
        if node.type == "negated_command":
            status = self._status(node.children[-1], in_condition=in_condition)
            return status.negate()
        if node.type == "list":
            return self._list_status(node, in_condition=in_condition)
        if node.type == "compound_statement" and node.children[0].type == "((":
            return self._arithmetic_status(node.children[1])
        if node.type == "command":
            words = self.command_words(node)
            name = plain(words[0]) if words else None
            if name in ("test", "["):
                return evaluate_test_words(
                    [w for w in words[1:] if plain(w) != "]"], self._is_unset
                )
            if name in ("true", ":", "false"):
                return Condition(name != "false")
            if in_condition:
                self.run(node)
                if words:
                    shown = plain(words[0])
                else:
                    shown = "a command"
                return Condition(None, (f"whether `{shown}` succeeds",))
        self.run(node)
        if in_condition and node.type not in ("variable_assignment",):
            return Condition(None, ("whether a command succeeds",))
        return Condition(True)

    def _list_status(self, node: Node, *, in_condition: bool) -> Condition:
        """Return whether `A && B` or `A || B` succeeds; B is followed where it may run."""
        first = node.children[0]
        operator = node.children[1]
        second = node.children[-1]
        first_status = self._status(first, in_condition=in_condition)
        is_and = operator.type == "&&"
        if first_status.holds is (not is_and):
            return first_status
        if first_status.holds is not None:
            return self._status(second, in_condition=in_condition)
        right = Condition(True)

        def run_second() -> None:
            nonlocal right
            right = self._status(second, in_condition=in_condition)

        self._fork(first_status.names, run_second, lambda: None)
        return first_status.joined(right, is_and=is_and)

    def _test(self, node: Node) -> Condition:
        """Return whether `[ ... ]` or `[[ ... ]]` holds."""
        is_double = node.children[0].type == "[["
        if node.children[0].type == "((":
            return self._arithmetic_status(node.children[1])
        tokens: list[str | Text] = []
        for child in node.children[1:-1]:
            self._flatten(child, tokens, is_double=is_double)
        return evaluate_test_tokens(tokens, self._is_unset)

    def _flatten(
        self, node: Node, tokens: list[str | Text], *, is_double: bool
    ) -> None:
        """Append the operators (text) and operands (values) of a test, in order."""
        kinds = (
            "binary_expression",
            "unary_expression",
            "parenthesized_expression",
            "negation_expression",
        )
        if node.type in kinds:
            for child in node.children:
                self._flatten(child, tokens, is_double=is_double)
        elif node.type == "test_operator" or not node.is_named:
            tokens.append(self.source.text(node))
        elif (
            node.type in ("extglob_pattern", "regex")
            or is_double
            or node.type in ("string", "raw_string")
        ):
            tokens.append(self.value(node))
        else:
            words = self.words(node)
            tokens.append(join(words) if words else ())

    def _is_unset(self, text: Text) -> bool:
        """Return whether a value is a variable that nothing sets, and note that."""
        if len(text) != 1 or text[0].unknown is None or text[0].unknown.options:
            return False
        (name, *further_names) = text[0].unknown.names
        unset = not further_names and re.fullmatch(r"[A-Za-z_]\w*", name) is not None
        if unset and name not in self.state.variables and name not in self.values:
            self.defaults.setdefault(name, "(empty)")
            return True
        return False

    def _arithmetic_status(self, node: Node) -> Condition:
        value = self.compute_node(node)
        if isinstance(value, int):
            return Condition(value != 0)
        return Condition(None, find_names(value))


def is_variable(segment: TextSegment, name: str) -> bool:
    """Return whether a segment is the value of a variable that nothing has set."""
    unknown = segment.unknown
    return unknown is not None and unknown.names == (name,) and not unknown.options


def _split_clause(node: Node) -> tuple[list[Node], list[Node]]:
    """Return the condition and the statements of `elif`."""
    condition: list[Node] = []
    body: list[Node] = []
    is_body = False
    for child in node.children:
        if child.type == "then":
            is_body = True
        elif child.type != "elif":
            (body if is_body else condition).append(child)
    return condition, body


def _merge_states(
    first: ShellState, second: ShellState, names: Sequence[str]
) -> ShellState:
    """Return the state after a branch that may have run. One that ended the script has not."""
    if first.has_ended or second.has_ended:
        if first.has_ended:
            return second
        return first
    merged = dict(first.variables)
    for name in {**first.variables, **second.variables}:
        value = first.variables.get(name)
        alternative = second.variables.get(name)
        if value == alternative:
            continue
        if isinstance(value, list) or isinstance(alternative, list):
            merged[name] = _merge_arrays(value or [], alternative or [], names)
        elif isinstance(value, dict) or isinstance(alternative, dict):
            merged[name] = make_unknown_text(names, 0)
        else:
            # A variable that only one branch sets is empty after the other one.
            merged[name] = merge(value or (), alternative or (), names)
    return ShellState(variables=merged, arguments=first.arguments)


def _merge_arrays(first: Value, second: Value, names: Sequence[str]) -> list[Text]:
    value = as_items(first)
    alternative = as_items(second)
    count = 0
    while (
        count < min(len(value), len(alternative)) and value[count] == alternative[count]
    ):
        count += 1
    options = (join(value[count:]), join(alternative[count:]))
    if options == ((), ()):
        return value[:count]
    deciders = [*names, *find_names(options[0]), *find_names(options[1])]
    return [*value[:count], make_unknown_text(deciders, 0, options)]


def _path_text(text: Text) -> str:
    """Return a path; what is unknown in it is left out, so that its name stays readable."""
    letters = plain(text)
    if letters is not None:
        return letters
    return "".join(
        part.text if part.unknown is None else f"<{' '.join(part.unknown.names)}>"
        for part in text
    )


def _slurm_values(text: str) -> dict[str, str]:
    """Return the variables that Slurm sets from the head of a script."""
    options: dict[str, str] = {}
    short = {"N": "nodes", "n": "ntasks", "G": "gpus"}
    for match in SLURM.finditer(text):
        line = match[1].split(" #")[0].strip()
        option = re.match(r"--([\w-]+)[=\s]\s*(\S+)|-([A-Za-z])\s*(\S+)", line)
        if option is not None:
            name = option[1] or short.get(option[3], option[3])
            options.setdefault(name, option[2] or option[4])
    gpus = re.search(r"gpu(?::[a-zA-Z][\w.-]*)?:(\d+)", options.get("gres", ""))
    nodes = re.fullmatch(r"\d+", options.get("nodes", ""))
    per_node = re.search(
        r"(\d+)$", options.get("gpus-per-node", gpus[1] if gpus else "")
    )
    values: dict[str, str] = {}
    if nodes is not None:
        values |= {"SLURM_NNODES": nodes[0], "SLURM_JOB_NUM_NODES": nodes[0]}
    if per_node is not None:
        values |= {
            "SLURM_GPUS_PER_NODE": per_node[1],
            "SLURM_GPUS_ON_NODE": per_node[1],
        }
    tasks = options.get("ntasks-per-node", "")
    if tasks.isdigit():
        values["SLURM_NTASKS_PER_NODE"] = tasks
    total = options.get("ntasks", "")
    if not total.isdigit() and tasks.isdigit() and nodes is not None:
        total = str(int(tasks) * int(nodes[0]))
    if total.isdigit():
        values |= {"SLURM_NTASKS": total, "SLURM_NPROCS": total}
    cpus = options.get("cpus-per-task", "")
    if cpus.isdigit():
        values["SLURM_CPUS_PER_TASK"] = cpus
    return values
