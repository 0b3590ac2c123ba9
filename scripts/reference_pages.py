"""Pages of docs/ that are written from the code: commands, findings, JSON, and what is not judged.

`scripts/schema` writes them, beside the tables that analyses declare; a test says whether they are
fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import typer

from traceprof import errors
from traceprof.cli import app
from traceprof.cli.commands import COMMANDS
from traceprof.findings import RULES
from traceprof.findings.rules import Rule
from traceprof.measures import ANALYSES
from traceprof.model.tables import TABLES
from traceprof.model.trace import RecordedBy
from traceprof.version import __version__

WRITTEN: Final = "<!-- From here on written by scripts/schema. -->"
_BY: Final = "Written by `scripts/schema` from the code.\n"
_MANY: Final = 6
"""An option of so many commands is explained once."""
_WORDS: Final[Mapping[type, str]] = {
    errors.TraceprofError: (
        "not enough memory, a disk, folder, or standard output that failed, or an internal error"
    ),
    errors.UsageError: "the command or its options are invalid; nothing was written",
    errors.TraceError: (
        "a trace, a run, the database of runs, or a file named by an option is missing or "
        "unreadable"
    ),
    errors.NotRecordedError: (
        "the trace does not contain the data; the message says how to record it"
    ),
    errors.RecordingError: "recording failed",
    errors.RegressionError: "a regression was found",
    errors.UndecidedError: "the data is not sufficient to check a limit on the regression",
}


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *([_cell(one) for one in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _commands() -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield every command by its whole name, with what click knows of it and its parameters."""
    group = typer.main.get_command(app)
    context = group.make_context("traceprof", ["--help"], resilient_parsing=True)
    for entry in COMMANDS:
        one: Any = group.get_command(context, entry.name)  # type: ignore[attr-defined]
        inside = one.make_context(entry.name, [], resilient_parsing=True, parent=context)
        yield entry.name, one, one.get_params(inside)
        for name in one.list_commands(inside) if hasattr(one, "list_commands") else ():
            below = one.get_command(inside, name)
            yield f"{entry.name} {name}", below, below.get_params(inside)


def _option(one: Any) -> tuple[str, str]:
    """Return how an option is written, and what it does."""
    value = "" if one.is_flag or one.count else f" {one.metavar or 'VALUE'}"
    names = sorted(one.opts, key=len) + sorted(one.secondary_opts)
    return f"`{', '.join(names)}{value}`", one.help or ""


def _bare(option: tuple[str, str]) -> str:
    return option[0].lstrip("`-")


def _argument(one: Any) -> str:
    name = one.metavar or one.name.upper()
    name += "..." if one.nargs == -1 and "..." not in name else ""
    return name if one.required else f"[{name}]"


def _split(parameters: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    shown = [one for one in parameters if not getattr(one, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option" and one.name != "help"]
    return arguments, options


def commands_page() -> str:
    """Return docs/commands.md."""
    known = [(name, one, *_split(parameters)) for name, one, parameters in _commands()]
    counts = Counter(_option(each) for *_, options in known for each in options)
    shared = [each for each, count in counts.most_common() if count >= _MANY]
    parts = [
        "# Commands\n",
        f"The output of `traceprof COMMAND --help`. {_BY}",
        "## Options that many commands take\n",
        _table(("option", ""), sorted(shared, key=_bare)),
    ]
    for name, one, arguments, options in known:
        written = [_option(each) for each in options]
        own = [each for each in written if each not in shared]
        others = [each[0].split(",")[-1].strip("` ").split()[0] for each in written]
        common = [f"`{o}`" for o, each in zip(others, written, strict=True) if each in shared]
        below = "COMMAND" if hasattr(one, "list_commands") else ""
        usage = " ".join(filter(None, ("traceprof", name, below, *map(_argument, arguments))))
        parts += [f"## {name}\n", f"```text\n{usage}\n```\n", f"{(one.help or '').strip()}\n"]
        if told := [(f"`{_argument(each)}`", each.help or "") for each in arguments if each.help]:
            parts.append(_table(("argument", ""), told))
        parts += [_table(("option", ""), own)] if own else []
        parts += [f"And {', '.join(common)}.\n"] if common else []
        parts += [_what_show_shows()] if name == "show" else []
    return "\n".join([*parts, _exit_codes()])


def man_page() -> str:
    """Return docs/traceprof.1, a page for `man` with the commands, files, and exit codes."""
    parts = [
        f'.TH TRACEPROF 1 "" "traceprof {__version__}" "User Commands"',
        ".SH NAME\ntraceprof \\- record and analyze the training runs of neural networks",
        ".SH SYNOPSIS\n.B traceprof\n[\\fICOMMAND\\fR] [\\fIOPTIONS\\fR] \\fITRACE\\fR...",
        ".SH DESCRIPTION\nWithout a command, print the report of a trace: where the time of each "
        "step goes, and which changes would save time. `traceprof COMMAND --help` lists the "
        "options of a command.",
        ".SH COMMANDS",
    ]
    for name, one, arguments, _ in (
        (name, one, *_split(parameters)) for name, one, parameters in _commands()
    ):
        usage = " ".join((name, *map(_argument, arguments)))
        summary = (one.help or "").strip().partition("\n")[0]
        parts.append(f".TP\n.B {_roff(usage)}\n{_roff(summary)}")
    parts.append(".SH EXIT STATUS")
    codes = [("0", "done"), *((str(k.exit_code), text) for k, text in _WORDS.items())]  # type: ignore[attr-defined]
    parts += [f".TP\n.B {code}\n{_roff(text)}" for code, text in [*codes, ("130", "Ctrl-C")]]
    parts.append(
        ".SH ENVIRONMENT\n.TP\n.B TRACEPROF_CACHE\nFolder of the cache; 0 turns the cache off.\n"
        ".TP\n.B TRACEPROF_RUNS\nFile of the run database.\n.TP\n.B NO_COLOR\nPrint without color."
    )
    return "\n".join(parts) + "\n"


def _roff(text: str) -> str:
    """Return ``text`` so that roff prints it unchanged."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    plain = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in plain)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def _what_show_shows() -> str:
    rows = (
        (f"`{entry.words}`", entry.summary, f"[`{entry.name}`](tables.md#{entry.name})")
        for entry in ANALYSES
        if entry.name != "findings"
    )
    head = "### Tables\n\n`show` also accepts the name of a table: `show classes`.\n\n"
    return head + _table(("command", "", "table"), rows)


def _exit_codes() -> str:
    rows = [(str(kind.exit_code), words) for kind, words in _WORDS.items()]  # type: ignore[attr-defined]
    every = [("0", "done"), *rows, ("130", "Ctrl-C")]
    return (
        "## Exit codes\n\n"
        + _table(("code", ""), every)
        + "\n`traceprof record` exits with the exit code of the recorded program.\n"
    )


def findings_page() -> str:
    """Return docs/findings.md."""
    parts = [
        "# Findings\n",
        "`traceprof findings` applies these rules, the most specific first. Each nanosecond "
        "belongs to at most one finding, so savings add up. Each finding reports [how its saving "
        "is known](concepts.md#how-a-saving-is-known).",
        _BY,
        _table(
            ("rule", "subject", "looks for", "details"),
            ((f"`{one.name}`", one.subject, one.summary, _show(one)) for one in RULES),
        ),
    ]
    return "\n".join(parts)


def _show(one: Rule) -> str:
    return f"[`show {one.show}`](tables.md#{one.show})"


def limits_page(page: str) -> str:
    """Return docs/limits.md with what can be judged only where it was recorded.

    Raises:
        ValueError: ``page`` has no line from which on it is written.
    """
    head, line, _ = page.partition(WRITTEN)
    if not line:
        raise ValueError(f"docs/limits.md without its line {WRITTEN}")
    of_subject: dict[str, list[Rule]] = {}
    for one in RULES:
        of_subject.setdefault(one.subject, []).append(one)
    rows = (
        (
            subject,
            "; ".join(dict.fromkeys(one.summary for one in rules)),
            ", ".join(dict.fromkeys(one.about for one in rules)),
            ", ".join(f"`{need}`" for need in dict.fromkeys(n for o in rules for n in o.needs)),
        )
        for subject, rules in of_subject.items()
    )
    names = ("subject", "looks for", "analyzed if the trace contains", "required data")
    needed = {need for one in RULES for need in one.needs}
    how = ((f"`{name}`", RecordedBy.NSYS.how_to(name)) for name in TABLES if name in needed)
    told = _table(names, rows)
    return f"{head}{line}\n\n{told}\n{_table(('data', 'how to record'), how)}"


def json_page(schema: Mapping[str, Any]) -> str:
    """Return docs/json.md: what ``schema`` says at its top."""
    rows = (
        (f"`{name}`", _kind(told), told.get("description", ""))
        for name, told in schema["properties"].items()
    )
    results = schema["properties"].get("results", {}).get("properties", {})
    parts = [
        "# JSON\n",
        f"`--json` prints one document ([schema](schema/analysis-2.json), `{schema['$id']}`). "
        f"{schema['description']} {_BY}",
        _table(("member", "is", ""), rows),
        "`results` has one member per requested analysis, with its `scalars`, `notes`, and "
        "`tables`. Each table is a list of rows, and the `key` of a row is unique in its table. "
        "[Tables](tables.md) lists columns, units, and meanings.\n",
        f"Analyses: {', '.join(f'`{name}`' for name in sorted(results))}.\n" if results else "",
    ]
    return "\n".join(parts)


def _kind(told: Mapping[str, Any]) -> str:
    if "const" in told:
        return f"`{told['const']}`"
    if "enum" in told:
        return " or ".join(f"`{one}`" for one in told["enum"])
    kind = told.get("type", told.get("$ref", "").rpartition("/")[2])
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def pages(docs: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the pages by name; ``docs`` has those of which a part is written by hand."""
    return {
        "commands.md": commands_page(),
        "findings.md": findings_page(),
        "json.md": json_page(schema),
        "limits.md": limits_page(docs["limits.md"]),
        "traceprof.1": man_page(),
    }
