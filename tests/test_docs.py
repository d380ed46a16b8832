"""The documents are true: links lead somewhere, commands exist with their options, Python examples compile."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

FENCE = re.compile(
    r"^(?P<indent> *)(?P<marks>```+)(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)^ *(?P=marks) *$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
EXPLICIT_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")
SHELL_LANGUAGES = {"console", "bash", "sh", "shell"}
SHELL_OPERATORS = {"|", "||", "&&", ";", "&"}
REDIRECTIONS = {">", ">>", "<"}


# Links


def slug(heading: str) -> str:
    """The anchor of a heading, as code forges make it: lower case, spaces to hyphens, punctuation dropped."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """All anchors of a document; a repeated heading gets -1, -2, ..."""
    count: dict[str, int] = {}
    found = set(EXPLICIT_ANCHOR.findall(text))
    for heading in HEADING.findall(FENCE.sub("", text)):
        name = slug(heading)
        found.add(f"{name}-{count[name]}" if name in count else name)
        count[name] = count.get(name, 0) + 1
    return found


def resolves(document: Path, link: str) -> bool:
    """Whether a relative link leads to a file inside the repository and to an anchor that is there."""
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors(target.read_text())


def relative_links(text: str) -> list[str]:
    """Links without a scheme, outside code."""
    prose = re.sub(r"`[^`\n]+`", "code", FENCE.sub("", text))
    return [link for link in LINK.findall(prose) if not SCHEME.match(link)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(document: Path) -> None:
    links = relative_links(document.read_text())
    assert [link for link in links if not resolves(document, link)] == []


def test_a_broken_link_or_anchor_would_be_seen() -> None:
    text = "[a](LICENSE) [b](missing.md) [`c`](#no-such) [d](https://example.org) `[e](f)`\n```\n[g](h)\n```\n"
    assert relative_links(text) == ["LICENSE", "missing.md", "#no-such"]
    assert [resolves(ROOT / "README.md", link) for link in relative_links(text)] == [True, False, False]
    assert anchors("# One `two`\n## One two\n```\n# not this\n```\n") == {"one-two", "one-two-1"}


# Fenced blocks


def fences(languages: set[str]) -> Iterator[tuple[str, str]]:
    """(where, body) of every fenced block in one of these languages."""
    for document in DOCUMENTS:
        text = document.read_text()
        for fence in FENCE.finditer(text):
            if fence["language"] in languages:
                line = text.count("\n", 0, fence.start()) + 1
                body = re.sub(f"^{fence['indent']}", "", fence["body"], flags=re.MULTILINE)
                yield f"{document.relative_to(ROOT)}:{line}", body


def shell_commands(body: str) -> Iterator[list[str]]:
    """Words of every command of a shell block: where there are `$ ` prompts, the other lines are output."""
    lines = [line.strip() for line in body.replace("\\\n", " ").splitlines()]
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in prompted or lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        yield from split_commands(list(lexer))


def split_commands(words: list[str]) -> Iterator[list[str]]:
    """Simple commands of one line, without variable assignments in front and redirections behind."""
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in SHELL_OPERATORS:
            command.append(word)
            continue
        while command and re.match(r"\w+=", command[0]):
            del command[0]
        end = next((i for i, w in enumerate(command) if w in REDIRECTIONS), len(command))
        if command[:end]:
            yield command[:end]
        command = []


def documented(program: str) -> list[Any]:
    """Every documented command line whose program's name matches the regular expression."""
    found = [(where, words) for where, body in fences(SHELL_LANGUAGES) for words in shell_commands(body)]
    return [pytest.param(words, id=f"{at} {' '.join(words)}") for at, words in found if re.fullmatch(program, words[0])]


def test_shell_blocks_are_understood() -> None:
    body = "$ A=1 pipeplan plan x.json \\\n  --json | python -m json.tool > out.txt  # why\nit isn't a command\n"
    assert list(shell_commands(body)) == [["pipeplan", "plan", "x.json", "--json"], ["python", "-m", "json.tool"]]


@pytest.mark.parametrize(("where", "body"), list(fences({"python", "py"})))
def test_python_examples_compile(where: str, body: str) -> None:
    compile(body, where, "exec")


@pytest.mark.parametrize("words", documented(r"(\./)?(scripts|\.ci)/\S+"))
def test_documented_scripts_exist(words: list[str]) -> None:
    assert (ROOT / words[0]).is_file()


@pytest.mark.parametrize("words", documented(r"python3?"))
def test_documented_modules_exist(words: list[str]) -> None:
    if words[1:2] == ["-m"] and words[2].split(".")[0] in {"api", "benchmarks", "planner", "profiles"}:
        module = ROOT / words[2].replace(".", "/")
        assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()


# The command line


@pytest.fixture(scope="module")
def program() -> Any:
    """The command tree of `pipeplan`."""
    if importlib.util.find_spec("api.cli") is None:
        pytest.skip("api.cli is not written yet")
    from typer.main import get_command

    from api.cli import app

    return get_command(app)


def fault(command: Any, arguments: list[str]) -> str:
    """What the command line would say about these arguments before it looks at any value; empty when nothing."""
    context = command.context_class(command)
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(arguments))
    except Exception as refused:  # typer brings its own copy of click, whose exceptions have no public home
        return str(refused)
    if "--help" in arguments:
        return ""
    if hasattr(command, "commands"):
        if not rest:
            return "" if command.invoke_without_command else "a command is missing"
        if rest[0] not in command.commands:
            return f"no such command: {rest[0]}"
        return fault(command.commands[rest[0]], rest[1:])
    if rest:
        return f"too many arguments: {rest}"
    missing = [p.name for p in command.params if p.required and given.get(p.name) is None]
    return f"missing: {missing}" if missing else ""


@pytest.mark.parametrize("words", documented("pipeplan"))
def test_documented_commands_exist_with_their_options(words: list[str], program: Any) -> None:
    assert fault(program, words[1:]) == ""


def test_a_wrong_command_would_be_seen() -> None:
    import typer
    from typer.main import get_command

    app = typer.Typer()

    @app.callback()
    def main() -> None: ...

    @app.command()
    def plan(source: str, num_stages: int = 1, json: bool = False) -> None: ...

    command = get_command(app)
    assert fault(command, ["plan", "x.json", "--num-stages", "2", "--json"]) == ""
    assert fault(command, ["plan", "--help"]) == ""
    assert "run" in fault(command, ["run"])
    assert "--stages" in fault(command, ["plan", "x.json", "--stages", "2"])
    assert "source" in fault(command, ["plan"])
    assert "y.json" in fault(command, ["plan", "x.json", "y.json"])
