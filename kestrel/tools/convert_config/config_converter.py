"""Conversion of a parsed Scala configuration to TOML tables, with remarks on settings that cannot be converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kestrel.config.model import AdminSettings, AliasSettings, Config, LoggingSettings, QueueSettings, ZooKeeperSettings
from kestrel.config.setting import MAX_COUNT, PORT, TABLE, TABLES, Setting, settings_of
from kestrel.tools.convert_config.scala_tree import (
    Expression,
    ScalaAssignment,
    ScalaCall,
    ScalaLiteral,
    ScalaNew,
    ScalaTuple,
    SpecialValue,
    Statement,
    UnreadStatement,
    Value,
    last_name,
    parts,
    unwrap_some,
    value,
)

Tables = dict[str, Any]

_LONGEST_SOURCE: Final = 100
"""Number of characters of a statement that a remark shows."""

_SECRETS: Final = ("credential", "password", "secret")
"""Words that mark a statement as secret. Remarks do not show its value."""


class ConfigRemark(NamedTuple):
    """A remark on a statement that was not converted unchanged."""

    first_line: int
    last_line: int
    source: str
    """Beginning of the statement, on one line."""
    reason: str
    """Explanation, or advice."""
    is_left_out: bool
    """True if the statement was left out, so that the server may behave differently from Kestrel."""

    def __str__(self) -> str:
        lines = f"line {self.first_line}"
        if self.last_line > self.first_line:
            lines = f"lines {self.first_line} to {self.last_line}"
        return f"{lines}: {self.source}: {self.reason}"


class ConvertedConfig(NamedTuple):
    """Tables of a converted configuration, and the remarks on it."""

    tables: Tables
    remarks: list[ConfigRemark]


class _UnconvertibleValue(Exception):
    """A value cannot be converted. The text is the reason."""


def _by_name(cls: Any) -> dict[str, Setting]:
    return {each.kestrel_name: each for each in settings_of(cls).values() if each.kind not in (TABLE, TABLES)}


_SERVER: Final = _by_name(Config)
_QUEUE: Final = _by_name(QueueSettings)
_ALIAS: Final = _by_name(AliasSettings)
_ADMIN: Final = _by_name(AdminSettings)
_ZOOKEEPER: Final = _by_name(ZooKeeperSettings)
_LOGGING: Final = _by_name(LoggingSettings)
_LOG_FILE: Final = {"filename": _LOGGING["file"], "rotateCount": _LOGGING["rotateCount"]}

_DEFAULTS: Final[Mapping[str, Value]] = {"queuePath": "/tmp", "statusFile": "/tmp/.kestrel-status"}
"""Kestrel's defaults that differ from this server's."""

_LEVELS: Final = {
    "FATAL": "critical",
    "CRITICAL": "critical",
    "ERROR": "error",
    "WARNING": "warn",
    "INFO": "info",
    "DEBUG": "debug",
    "TRACE": "debug",
    "ALL": "debug",
}
_ACLS: Final = {"OpenUnsafeACL": "open-unsafe", "EveryoneReadCreatorAllACL": "everyone-read-creator-all"}
_INITIALIZERS: Final = ("clientInitializer", "serverSetInitializer")

_ONLY_SCALA: Final = "only Scala can evaluate this; write its value yourself"
_NO_STATEMENT: Final = "this statement cannot be converted; write its settings yourself"
_NO_SETTING: Final = "there is no such setting here"
_OLD: Final = {
    "maxJournalOverflow": "a setting of old releases, whose maxJournalSize is defaultJournalSize today: look at both"
}


class ConfigConverter:
    """A converter of one configuration to tables, with a remark on every statement that is left out."""

    def __init__(self) -> None:
        self._tables: Tables = {}
        self._remarks: list[ConfigRemark] = []

    def convert(self, root: ScalaNew) -> ConvertedConfig:
        queues: list[Tables] = []
        aliases: list[Tables] = []
        for each in self._assignments(root):
            match each.path:
                case ("queues",):
                    queues = self._built(each, "QueueBuilder", _QUEUE | {"name": _ALIAS["name"]}, ["name"])
                case ("aliases",):
                    aliases = self._built(each, "AliasBuilder", _ALIAS, list(_ALIAS))
                case ("zookeeper",):
                    self._zookeeper(each)
                case ("loggers",):
                    self._loggers(each)
                case ("default", *path):
                    self._take(each._replace(path=tuple(path)), _QUEUE, self._table("default"))
                case ("admin",):
                    self._admin(each)
                case ("admin", *path):
                    self._admin_setting(each._replace(path=tuple(path)))
                case ("beFactoryClass",) if value(each.value) is SpecialValue.NOTHING:
                    pass
                case ("defaultStatus",):
                    self._set(each, _SERVER["defaultStatus"], self._tables, last_name(unwrap_some(each.value)))
                case _:
                    self._take(each, _SERVER, self._tables)
        self._add_kestrel_defaults()
        if queues:
            self._tables["queues"] = queues
        if aliases:
            self._tables["aliases"] = aliases
        self._remarks.sort(key=lambda remark: remark.first_line)
        return ConvertedConfig(self._tables, self._remarks)

    # Statements.

    def _assignments(self, made: ScalaNew) -> Iterator[ScalaAssignment]:
        """Yield the last assignment of each setting of an object. Remark on all that is not converted."""
        if made.arguments or made.others:
            source = f"new {made.type}" + "".join(f" with {other}" for other in made.others)
            reason = "its arguments and traits cannot be converted; write their settings yourself"
            self._remarks.append(ConfigRemark(made.line, made.line, _one_line(source), reason, True))
        last = {each.path: each for each in made.body if isinstance(each, ScalaAssignment)}
        for each in made.body:
            if isinstance(each, UnreadStatement):
                self._left_out(each, _NO_STATEMENT)
            elif last[each.path] is not each:
                self._remark(each, f"line {last[each.path].line} sets it again, and is used", is_left_out=False)
            else:
                yield each

    def _take(self, statement: ScalaAssignment, known: Mapping[str, Setting], table: Tables) -> bool:
        """Convert a single setting. Return whether that succeeded."""
        name = ".".join(statement.path)
        setting = known.get(name)
        if setting is None:
            self._left_out(statement, _OLD.get(name, _NO_SETTING))
            return False
        return self._set(statement, setting, table, value(statement.value))

    def _set(
        self, statement: ScalaAssignment, setting: Setting, table: Tables, said: Value | SpecialValue | None
    ) -> bool:
        try:
            table[setting.kestrel_name] = _checked(setting, said)
        except _UnconvertibleValue as error:
            self._left_out(statement, str(error))
            return False
        return True

    def _table(self, name: str) -> Tables:
        table: Tables = self._tables.setdefault(name, {})
        return table

    # Lists of queues and aliases.

    def _built(
        self, statement: ScalaAssignment, type_: str, known: Mapping[str, Setting], needed: list[str]
    ) -> list[Tables]:
        tables = []
        for each in parts(statement.value):
            if not isinstance(each, ScalaNew) or each.type != type_:
                self._left_out_part(statement, each, f"this is no new {type_} {{ ... }}; write its settings yourself")
                continue
            table: Tables = {}
            for one in self._assignments(each):
                self._take(one, known, table)
            if self._has_all(statement, each, table, needed):
                tables.append(table)
        return tables

    def _has_all(self, statement: ScalaAssignment, part: ScalaNew, table: Tables, needed: Iterable[str]) -> bool:
        """Return whether a table has the settings without which it makes no sense. If not, remark on that."""
        lacking = [name for name in needed if name not in table]
        if lacking:
            reason = f"it has no {' and no '.join(lacking)} that could be read, and is left out as a whole"
            self._left_out_part(statement, part, reason)
        return not lacking

    # Settings with tables of their own.

    def _admin(self, statement: ScalaAssignment) -> None:
        """Convert ``admin = new AdminServiceConfig { ... }``."""
        made = unwrap_some(statement.value)
        if not isinstance(made, ScalaNew) or made.type != "AdminServiceConfig":
            self._left_out(statement, _ONLY_SCALA)
            return
        self._tables.pop("admin", None)  # earlier settings were of another object
        for each in self._assignments(made):
            self._admin_setting(each)

    def _admin_setting(self, statement: ScalaAssignment) -> None:
        if statement.path == ("statsNodes",):
            self._stats(statement)
        else:
            table = self._table("admin")
            if self._take(statement, {"httpPort": _ADMIN["httpPort"]}, table) and table["httpPort"] is not False:
                reason = "Kestrel listens on every address, and this server only on 127.0.0.1, unless listenAddress"
                self._remark(statement, f"{reason} in [admin] names another", is_left_out=False)

    def _stats(self, statement: ScalaAssignment) -> None:
        """Remark on the collector of statistics over time, which this server always has. Leave out other reporters."""
        for node in parts(statement.value):
            if not isinstance(node, ScalaNew) or node.type != "StatsConfig" or node.arguments or node.others:
                self._left_out_part(statement, node, _NO_SETTING)
                continue
            for each in self._assignments(node):
                kinds = [part.type if isinstance(part, ScalaNew) else None for part in parts(each.value)]
                if each.path == ("reporters",) and set(kinds) <= {"TimeSeriesCollectorConfig"}:
                    reason = "the admin port has the figures of the last hour without it"
                    self._remark(each, reason, is_left_out=False)
                else:
                    self._left_out(each, f"{_NO_SETTING}; the admin port has /metrics for Prometheus")

    def _zookeeper(self, statement: ScalaAssignment) -> None:
        made = unwrap_some(statement.value)
        if value(made) is SpecialValue.NOTHING:
            return
        if not isinstance(made, ScalaNew) or made.type != "ZooKeeperBuilder":
            self._left_out(statement, _ONLY_SCALA)
            return
        table: Tables = {}
        for each in self._assignments(made):
            match each.path:
                case ("credentials",):
                    self._set(each, _ZOOKEEPER["credentials"], table, _credentials(each.value))
                case ("acl",):
                    self._set(
                        each, _ZOOKEEPER["acl"], table, _ACLS.get(last_name(each.value) or "", SpecialValue.NO_VALUE)
                    )
                case (name,) if name in _INITIALIZERS and value(each.value) is not SpecialValue.NOTHING:
                    self._left_out(each, f"code in Scala: {name} names a callable of Python here")
                case _:
                    self._take(each, _ZOOKEEPER, table)
        if self._has_all(statement, made, table, ("host", "pathPrefix")):
            self._tables["zookeeper"] = table

    # The log.

    def _loggers(self, statement: ScalaAssignment) -> None:
        loggers = parts(statement.value)
        for logger in loggers:
            if not isinstance(logger, ScalaNew) or logger.type != "LoggerConfig":
                self._left_out_part(statement, logger, _ONLY_SCALA)
            elif any(isinstance(each, ScalaAssignment) and each.path == ("node",) for each in logger.body):
                self._left_out_part(statement, logger, "parts of the server have other names here: [logging] levels")
            elif "logging" in self._tables:
                self._left_out_part(statement, logger, "there is one log here")
            else:
                self._logger(logger)

    def _logger(self, logger: ScalaNew) -> None:
        table = self._table("logging")
        for each in self._assignments(logger):
            match each.path:
                case ("level",):
                    word = last_name(unwrap_some(each.value))
                    if value(each.value) is not SpecialValue.NOTHING:
                        self._set(each, _LOGGING["level"], table, _LEVELS.get(word or "", SpecialValue.NO_VALUE))
                case ("handlers",):
                    self._handlers(each, table)
                case ("useParents",):
                    self._remark(each, "this server has one log, so there is nothing to do", is_left_out=False)
                case _:
                    self._left_out(each, _NO_SETTING)

    def _handlers(self, statement: ScalaAssignment, table: Tables) -> None:
        """Convert the first file handler. Without one the log goes to standard output."""
        for handler in parts(statement.value):
            if isinstance(handler, ScalaNew) and handler.type == "FileHandlerConfig" and "file" not in table:
                for each in self._assignments(handler):
                    self._file_setting(each, table)
            elif isinstance(handler, ScalaNew) and handler.type == "ConsoleHandlerConfig" and not handler.body:
                if len(parts(statement.value)) > 1:
                    self._left_out_part(statement, handler, "a server that logs to a file does not log elsewhere")
            else:
                self._left_out_part(statement, handler, "there is one log here: a file, or the standard output")

    def _file_setting(self, statement: ScalaAssignment, table: Tables) -> None:
        match statement.path:
            case ("append",) if value(statement.value) is True:
                pass  # as always here
            case ("roll",):
                self._roll(statement, statement.value, table)
            case _:
                self._take(statement, _LOG_FILE, table)

    def _roll(self, statement: ScalaAssignment, said: Expression, table: Tables) -> None:
        word = last_name(said)
        if word in ("Never", "SigHup"):
            if word == "Never":
                self._remark(statement, "SIGHUP reopens the log file anyway", is_left_out=False)
            return
        match said:
            case ScalaCall(_, policy, (size,)) if last_name(policy) == "MaxSize":
                self._set(statement, _LOGGING["rotateSize"], table, value(size))
            case _:
                self._left_out(statement, "a log is rotated by its size (rotateSize), or by logrotate and SIGHUP")

    # Defaults.

    def _add_kestrel_defaults(self) -> None:
        """Add Kestrel's defaults where this server's differ and the configuration does not set a value."""
        for name, default in _DEFAULTS.items():
            if not any(remark.source.startswith(name) for remark in self._remarks):  # set, but not convertible
                self._tables.setdefault(name, default)
        self._table("admin").setdefault("httpPort", False)  # Kestrel opens it only if it is configured

    # Remarks.

    def _left_out(self, statement: Statement, reason: str) -> None:
        self._remark(statement, reason, is_left_out=True)

    def _remark(self, statement: Statement, reason: str, *, is_left_out: bool) -> None:
        source = _one_line(statement.source)
        self._remarks.append(ConfigRemark(statement.line, statement.last_line, source, reason, is_left_out))

    def _left_out_part(self, statement: ScalaAssignment, part: Expression, reason: str) -> None:
        """Remark that a member of a list was left out, at the line where it begins."""
        what = f"new {part.type}" if isinstance(part, ScalaNew) else last_name(part) or "this expression"
        source = _one_line(f"{'.'.join(statement.path)}: {what}")
        self._remarks.append(ConfigRemark(part.line, part.line, source, reason, True))


def _checked(setting: Setting, said: Value | SpecialValue | None) -> Value:
    """Return the value in a form that the server accepts for the setting. Raise `_UnconvertibleValue`."""
    kind = setting.kind
    is_none = said in (SpecialValue.NOTHING, SpecialValue.LARGEST_INT)
    if said is None or said is SpecialValue.NO_VALUE:
        raise _UnconvertibleValue(_ONLY_SCALA)
    if isinstance(said, int) and not isinstance(said, bool) and kind.quantity is not None:
        raise _UnconvertibleValue(f"a {kind.quantity} has a unit")
    for each in ("none", MAX_COUNT) if said is SpecialValue.LARGEST_INT else ("none",) if is_none else (said,):
        assert not isinstance(each, SpecialValue)
        try:
            parsed = kind.parse(each)
        except ValueError as error:
            reason = str(error)
        else:
            if parsed is None and not is_none:
                raise _UnconvertibleValue(f"{each} means none in this server's configuration: use another name")
            if not is_none or parsed is not None:
                return each
            return False if kind == PORT else kind.show(None)
    raise _UnconvertibleValue("this setting must have a limit here" if is_none else reason)


def _credentials(expression: Expression) -> Value | SpecialValue:
    match unwrap_some(expression):
        case ScalaTuple(_, (ScalaLiteral(_, str(user)), ScalaLiteral(_, str(password)))) if ":" not in user:
            return f"{user}:{password}"
        case other:
            return SpecialValue.NOTHING if value(other) is SpecialValue.NOTHING else SpecialValue.NO_VALUE


def _one_line(source: str) -> str:
    """Return the beginning of a statement on one line, without control characters and secrets."""
    words = " ".join(source.split())
    if any(secret in words.lower() for secret in _SECRETS):
        words = words.partition("=")[0].strip() if "=" in words else words.split(maxsplit=1)[0]
        words = words[: _LONGEST_SOURCE // 2] + " = ..."
    shown = "".join(each if each.isprintable() else "?" for each in words[:_LONGEST_SOURCE])
    return shown + ("..." if len(words) > _LONGEST_SOURCE else "")
