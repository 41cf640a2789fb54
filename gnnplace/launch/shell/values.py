"""Values of a shell: texts of which parts may be unknown, each part with the line it stands on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Unknown:
    """A value that the script alone does not have.

    Attributes:
        names: What would have to be known: variables of the environment, or a condition in words.
        options: The texts that it may be, where a condition decides between them.
    """

    names: tuple[str, ...]
    options: tuple[Text, ...] = ()


@dataclass(frozen=True)
class TextSegment:
    """A part of a text.

    Attributes:
        text: The letters; empty where they are unknown.
        line: Line of the script that the letters stand on; 0 in a file beside it.
        unknown: What it depends on, where it is not known.
        quoted: Whether blanks in it separate no words.
    """

    text: str
    line: int
    unknown: Unknown | None = None
    quoted: bool = False


Text = tuple[TextSegment, ...]
"""A text of segments, in order."""


def literal(text: str, line: int, *, quoted: bool = True) -> Text:
    """Return a text of letters that stand on one line."""
    return (TextSegment(text=text, line=line, quoted=quoted),)


def make_unknown_text(
    names: Iterable[str], line: int, options: Sequence[Text] = ()
) -> Text:
    """Return a text that depends on names."""
    unknown = Unknown(names=tuple(dict.fromkeys(names)), options=tuple(options))
    return (TextSegment(text="", line=line, unknown=unknown),)


def plain(text: Text) -> str | None:
    """Return the letters of a text, None if a part of it is unknown."""
    if any(segment.unknown is not None for segment in text):
        return None
    return "".join(segment.text for segment in text)


def find_names(text: Text) -> tuple[str, ...]:
    """Return the names that a text depends on, each once."""
    names = [
        name for part in text if part.unknown is not None for name in part.unknown.names
    ]
    return tuple(dict.fromkeys(names))


def find_line(text: Text) -> int | None:
    """Return the line of a text's first segment, None in a file beside the script."""
    lines = [segment.line for segment in text if segment.line]
    return lines[0] if lines else None


def with_quotes(text: Text, *, quoted: bool) -> Text:
    """Return a text whose blanks do, or do not, separate words."""
    return tuple(replace(segment, quoted=quoted) for segment in text)


def split_words(text: Text) -> list[Text]:
    """Split a text at the blanks that stand outside of quotes.

    An option of an unknown part that begins or ends with a blank separates words, too.
    """
    splitter = _Splitter()
    for segment in text:
        splitter.add(segment)
    splitter.end_word()
    return splitter.words


class _Splitter:
    """A collector of words from segments of text.

    Attributes:
        words: Those that have ended.
    """

    def __init__(self) -> None:
        self.words: list[Text] = []
        self._word: list[TextSegment] = []

    def end_word(self) -> None:
        """End the word that has begun, if one has."""
        if self._word:
            self.words.append(tuple(self._word))
            self._word = []

    def add(self, segment: TextSegment) -> None:
        """Add a segment to the word that has begun, or as words of its own."""
        if segment.unknown is not None:
            self._add_unknown(segment, segment.unknown)
        elif segment.quoted:
            self._word.append(segment)
        else:
            self._add_blanks(segment)

    def _add_unknown(self, segment: TextSegment, unknown: Unknown) -> None:
        separates = bool(unknown.options) and not segment.quoted
        if separates and _are_all_blank_at(unknown.options, 0):
            self.end_word()
        self._word.append(segment)
        if separates and _are_all_blank_at(unknown.options, -1):
            self.end_word()

    def _add_blanks(self, segment: TextSegment) -> None:
        """Add an unquoted segment, whose blanks separate words."""
        if segment.text[:1].isspace():
            self.end_word()
        for index, piece in enumerate(segment.text.split()):
            if index:
                self.end_word()
            self._word.append(replace(segment, text=piece))
        if segment.text[-1:].isspace():
            self.end_word()


def _are_all_blank_at(options: Sequence[Text], index: int) -> bool:
    """Return whether every option is empty or has a blank at its first or last letter."""
    letters = [plain(option) for option in options]
    return all(
        text is not None and (not text or text[index].isspace()) for text in letters
    )


def join(texts: Iterable[Text], separator: str = " ") -> Text:
    """Return texts after each other, a separator between them."""
    joined: list[TextSegment] = []
    for index, text in enumerate(texts):
        if index:
            line = text[0].line if text else 0
            joined.append(TextSegment(text=separator, line=line))
        joined += text
    return tuple(joined)


def merge(first: Text, second: Text, names: Iterable[str]) -> Text:
    """Return what a text is after a branch that may or may not have run.

    Args:
        first: The text after one branch.
        second: The text after the alternative.
        names: What decides between them.
    """
    if first == second:
        return first
    count = 0
    for segment, alternative in zip(first, second, strict=False):
        if segment != alternative:
            break
        count += 1
    options = (first[count:], second[count:])
    deciders = [*names, *find_names(options[0]), *find_names(options[1])]
    line = next((segment.line for option in options for segment in option), 0)
    return (*first[:count], *make_unknown_text(deciders, line, options))
