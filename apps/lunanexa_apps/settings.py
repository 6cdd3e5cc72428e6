"""Settings: command-line flag, else ``LUNANEXA_*`` variable, else TOML file, else default.

A settings class is a frozen attrs class (``kw_only``) whose fields have the metadata of :func:`setting`. The loader
knows where each value came from and says so in every error; a key or variable that no setting has is an
error too, with the nearest name that exists. All faults are told at once. Nothing here reads the process's
own environment: that is an argument.
"""

import difflib
import enum
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from lunanexa_apps.setting_kinds import Kind, NotOfThisKind, SecretText, Several, StoreAddress

T = TypeVar("T", bound=attrs.AttrsInstance)
V = TypeVar("V")

Flag: TypeAlias = str | tuple[str, ...] | None
"""What the command line has for a setting; empty or ``None`` where it is not given."""
PREFIX: Final = "LUNANEXA_"
_KIND: Final = "lunanexa_kind"
_HELP: Final = "lunanexa_help"
_COMPUTED: Final = "lunanexa_computed"
_ENV_REFERENCE: Final = "env:"
SECRET_LIMIT_BYTES: Final = 64 * 1024


class SourceKind(enum.Enum):
    """Where a value may come from, first one first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@attrs.frozen
class Source:
    """Where a value came from. ``name``: the flag, the variable, or file and key."""

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return self.name


@attrs.frozen(kw_only=True)
class Loaded(Generic[T]):
    """Settings, and the source of each by field name."""

    settings: T
    sources: Mapping[str, Source]


@attrs.frozen
class ConfigFile:
    """A TOML file that was read. Relative paths in it start from its own folder."""

    path: str
    document: Mapping[str, object]


class SettingsError(ValueError):
    """The settings can't be used; ``problems`` has every reason, one line each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def setting(
    kind: Kind[V], help: str, *, computed: Callable[[Mapping[str, str]], V] | None = None
) -> Mapping[str, object]:
    """The ``metadata`` of a field of a settings class. ``computed`` makes the default from the environment
    (XDG folders)."""
    return {_KIND: kind, _HELP: help, _COMPUTED: computed}


def help_of(settings: type, name: str) -> str:
    """The one-line description of a setting, or of the file that holds a secret one (``<name>_file``)."""
    fields = attrs.fields_dict(settings)
    if name in fields:
        return str(fields[name].metadata[_HELP])
    return f"file that holds: {fields[name.removesuffix('_file')].metadata[_HELP]}"


def repeats(settings: type, name: str) -> bool:
    """Whether a setting's flag may be given again for more."""
    field = attrs.fields_dict(settings).get(name)
    return field is not None and isinstance(field.metadata[_KIND], Several)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def read_config(path: str) -> ConfigFile:
    """Reads a TOML file. Raises :class:`SettingsError`."""
    try:
        with open(path, "rb") as file:
            return ConfigFile(os.path.abspath(path), tomllib.load(file))
    except OSError as error:
        raise SettingsError([f"{path}: {(error.strerror or 'unreadable').lower()}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: not TOML: {error}"]) from None


def load(
    settings: type[T],
    *,
    flags: Mapping[str, Flag],
    environment: Mapping[str, str],
    config: ConfigFile | None = None,
    folder: str = ".",
    foreign: frozenset[str] = frozenset(),
) -> Loaded[T]:
    """The effective settings. ``flags`` are by field name; an empty variable
    counts as not set; ``foreign`` are ``LUNANEXA_*`` variables with another meaning. Raises
    :class:`SettingsError` with every problem."""
    reader = _Reader(settings, flags, environment, config, os.path.abspath(folder))
    problems = reader.unknown_names(foreign)
    values: dict[str, object] = {}
    sources: dict[str, Source] = {}
    for field in attrs.fields(settings):
        try:
            values[field.name], sources[field.name] = reader.read(field)
        except SettingsError as error:
            problems.extend(error.problems)
    if problems:
        raise SettingsError(problems)
    return Loaded(settings=settings(**values), sources=sources)


class _Reader:
    """One load: where each setting is looked for, in order."""

    def __init__(
        self,
        settings: type,
        flags: Mapping[str, Flag],
        environment: Mapping[str, str],
        config: ConfigFile | None,
        folder: str,
    ) -> None:
        self._fields = attrs.fields_dict(settings)
        self._flags = flags
        self._environment = environment
        self._config = config
        self._folder = folder
        self._names = set(self._fields) | {f"{n}_file" for n in self._fields if self._is_secret(n)}

    def unknown_names(self, foreign: frozenset[str]) -> list[str]:
        assert set(self._flags) <= self._names, set(self._flags) - self._names
        keys = () if self._config is None else self._config.document
        path = "" if self._config is None else self._config.path
        variables = {variable_of(name) for name in self._names} | foreign
        ours = sorted(name for name in self._environment if name.startswith(PREFIX))
        return [
            *(f"{path}: unknown key {key}{_nearest(key, self._names)}" for key in keys if key not in self._names),
            *(
                f"unknown environment variable {name}{_nearest(name, variables)}"
                for name in ours
                if name not in variables
            ),
        ]

    def read(self, field: "attrs.Attribute[Any]") -> tuple[object, Source]:
        found = self._find(field.name)
        if found is None and self._is_secret(field.name):
            pointer = self._find(f"{field.name}_file")
            if pointer is not None:
                return self._read_secret_file(field, *pointer)
        if found is None:
            computed = field.metadata[_COMPUTED]
            default = field.default if computed is None else computed(self._environment)
            return default, Source(SourceKind.DEFAULT, "default")
        return self._convert(field, *found), found[1]

    def _find(self, name: str) -> tuple[object, Source] | None:
        flag = self._flags.get(name)
        if flag is not None and flag != ():
            return flag, Source(SourceKind.FLAG, flag_of(name))
        variable = self._environment.get(variable_of(name))
        if variable:
            return variable, Source(SourceKind.ENVIRONMENT, variable_of(name))
        if self._config is not None and name in self._config.document:
            return self._config.document[name], Source(SourceKind.FILE, f"{self._config.path}: {name}")
        return None

    def _convert(self, field: "attrs.Attribute[Any]", value: object, source: Source) -> object:
        kind: Kind[object] = field.metadata[_KIND]
        try:
            if isinstance(value, tuple):
                return kind.from_toml(list(value), self._folder)
            if source.kind is SourceKind.FLAG and isinstance(kind, StoreAddress):
                return kind.from_toml(value, self._folder)
            if source.kind is not SourceKind.FILE:
                return kind.from_text(str(value), self._folder)
            if isinstance(kind, SecretText) and isinstance(value, str) and value.startswith(_ENV_REFERENCE):
                return self._follow(field, value.removeprefix(_ENV_REFERENCE), source)
            return kind.from_toml(value, self._config_folder)
        except NotOfThisKind as error:
            raise SettingsError([f"{field.name} (from {source}): expected {error}"]) from None

    def _follow(self, field: "attrs.Attribute[Any]", variable: str, source: Source) -> object:
        text = self._environment.get(variable)
        if not text:
            raise SettingsError([f"{field.name} (from {source}): the environment has no {variable}"])
        kind: Kind[object] = field.metadata[_KIND]
        return kind.from_text(text, self._folder)

    def _read_secret_file(self, field: "attrs.Attribute[Any]", value: object, source: Source) -> tuple[object, Source]:
        folder = self._config_folder if source.kind is SourceKind.FILE else self._folder
        try:
            with open(os.path.join(folder, os.path.expanduser(str(value))), encoding="utf-8") as file:
                text = file.read(SECRET_LIMIT_BYTES)
            kind: Kind[object] = field.metadata[_KIND]
            return kind.from_text(text, self._folder), source
        except OSError as error:
            reason = (error.strerror or "unreadable").lower()
            raise SettingsError([f"{field.name} (from {source}): {value}: {reason}"]) from None
        except (NotOfThisKind, UnicodeDecodeError):
            raise SettingsError([f"{field.name} (from {source}): {value}: expected a secret in it"]) from None

    def _is_secret(self, name: str) -> bool:
        return isinstance(self._fields[name].metadata[_KIND], SecretText)

    @property
    def _config_folder(self) -> str:
        assert self._config is not None
        return os.path.dirname(self._config.path)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else "; known: " + ", ".join(sorted(known))
