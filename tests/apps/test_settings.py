"""Settings: which source wins, and what an error says."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.setting_kinds import HostPort, Secret
from lunanexa_apps.settings import (
    ConfigFile,
    Flag,
    Loaded,
    SettingsError,
    SourceKind,
    flag_of,
    load,
    read_config,
    variable_of,
)
from lunanexa_apps.up.configuration import (
    FOREIGN_VARIABLES,
    CommandSettings,
    LogLevel,
    default_data_dir,
    load_command_settings,
)

HOME = {"HOME": "/home/u"}


def loaded(
    flags: Mapping[str, Flag] | None = None,
    environment: dict[str, str] | None = None,
    document: dict[str, object] | None = None,
) -> Loaded[CommandSettings]:
    config = None if document is None else ConfigFile("/etc/lunanexa.toml", document)
    return load(
        CommandSettings,
        flags=flags or {},
        environment=HOME | (environment or {}),
        config=config,
        folder="/here",
        foreign=FOREIGN_VARIABLES,
    )


def problems(
    flags: Mapping[str, Flag] | None = None,
    environment: dict[str, str] | None = None,
    document: dict[str, object] | None = None,
) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        loaded(flags, environment, document)
    return caught.value.problems


ports = st.none() | st.integers(0, 65_535)
counts = st.none() | st.integers(0, 1_000_000)


@given(ports, ports, ports, counts, counts, counts)
def test_flag_then_variable_then_file_then_default(
    flag: int | None,
    variable: int | None,
    key: int | None,
    count_flag: int | None,
    count_variable: int | None,
    count_key: int | None,
) -> None:
    flags: dict[str, str | None] = {
        "listen": None if flag is None else f"flag:{flag}",
        "queue_requests_max": None if count_flag is None else str(count_flag),
    }
    environment = {} if variable is None else {"LUNANEXA_LISTEN": f"env:{variable}"}
    if count_variable is not None:
        environment["LUNANEXA_QUEUE_REQUESTS_MAX"] = str(count_variable)
    document: dict[str, object] = {} if key is None else {"listen": f"file:{key}"}
    if count_key is not None:
        document["queue_requests_max"] = count_key
    result = loaded(flags, environment, document)
    first = next(
        (
            (kind, HostPort(host, value))
            for kind, host, value in (
                (SourceKind.FLAG, "flag", flag),
                (SourceKind.ENVIRONMENT, "env", variable),
                (SourceKind.FILE, "file", key),
            )
            if value is not None
        ),
        (SourceKind.DEFAULT, HostPort("127.0.0.1", 8400)),
    )
    assert (result.sources["listen"].kind, result.settings.listen) == first
    wanted = next((value for value in (count_flag, count_variable, count_key) if value is not None), 256)
    assert result.settings.queue_requests_max == wanted


def test_an_empty_variable_counts_as_not_set() -> None:
    assert loaded(environment={"LUNANEXA_LISTEN": ""}).sources["listen"].kind is SourceKind.DEFAULT


def test_unknown_names_are_errors_with_the_nearest_known_one() -> None:
    assert problems(document={"data-dir": "/x"}) == (
        "/etc/lunanexa.toml: unknown key data-dir; did you mean data_dir?",
    )
    assert problems(environment={"LUNANEXA_LISTENS": "x"}) == (
        "unknown environment variable LUNANEXA_LISTENS; did you mean LUNANEXA_LISTEN?",
    )
    (far,) = problems(document={"zzzzzz": 1})
    assert "unknown key zzzzzz; known: adopt, adopt_key, adopt_key_file, alias" in far


@pytest.mark.parametrize("variable", sorted(FOREIGN_VARIABLES))
def test_variables_with_another_meaning_are_no_settings(variable: str) -> None:
    assert loaded(environment={variable: "7"}).settings == loaded().settings


@pytest.mark.parametrize(
    ("flags", "environment", "document", "message"),
    [
        ({"slots": "x"}, {}, {}, "slots (from --slots): expected an integer from 1 to 4096"),
        ({}, {"LUNANEXA_SLOTS": "0"}, {}, "slots (from LUNANEXA_SLOTS): expected an integer from 1 to 4096"),
        (
            {},
            {},
            {"slots": "4"},
            "slots (from /etc/lunanexa.toml: slots): expected an integer from 1 to 4096, not a string",
        ),
        (
            {},
            {},
            {"slots": True},
            "slots (from /etc/lunanexa.toml: slots): expected an integer from 1 to 4096, not a boolean",
        ),
        ({}, {}, {"alias": 7}, "alias (from /etc/lunanexa.toml: alias): expected a string, not an integer"),
        ({}, {}, {"alias": {}}, "alias (from /etc/lunanexa.toml: alias): expected a string, not a table"),
        ({"listen": "host"}, {}, {}, "listen (from --listen): expected HOST:PORT, a port from 0 to 65535"),
        ({"listen": "h:99999"}, {}, {}, "listen (from --listen): expected HOST:PORT, a port from 0 to 65535"),
        (
            {},
            {"LUNANEXA_LOG_LEVEL": "loud"},
            {},
            "log_level (from LUNANEXA_LOG_LEVEL): expected one of debug, info, warning, error",
        ),
    ],
)
def test_a_wrong_value_names_field_and_source(
    flags: dict[str, str | None], environment: dict[str, str], document: dict[str, object], message: str
) -> None:
    assert problems(flags, environment, document) == (message,)


def test_every_problem_is_told_at_once() -> None:
    found = problems({"slots": "x"}, {"LUNANEXA_NO": "1"}, {"nothing": 1})
    assert len(found) == 3


def test_paths_start_where_they_were_written() -> None:
    assert loaded({"model": "m.gguf"}).settings.model == "/here/m.gguf"
    assert loaded(document={"model": "../m.gguf"}).settings.model == "/m.gguf"
    assert loaded(document={"model": "/abs/m.gguf"}).settings.model == "/abs/m.gguf"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.0.0.0:80", HostPort("0.0.0.0", 80)),
        (":9000", HostPort("127.0.0.1", 9000)),
        ("9000", HostPort("127.0.0.1", 9000)),
        ("[::1]:9000", HostPort("::1", 9000)),
    ],
)
def test_addresses(text: str, value: HostPort) -> None:
    assert loaded({"listen": text}).settings.listen == value
    assert loaded({"listen": str(value)}).settings.listen == value


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080"),
        ("http://box", "http://box:80"),
        ("http://[::1]:11434/v1", "http://[::1]:11434"),
    ],
)
def test_urls(text: str, url: str) -> None:
    assert loaded({"url": text}).settings.url == url
    assert loaded({"adopt": (text, "local")}).settings.adopt == (url, "local")


@pytest.mark.parametrize(
    "text", ["https://box", "box:8080", "http://", "http://box/api", "http://u:p@box", "http://box:x", "http://box?a=b"]
)
def test_what_is_no_usable_url(text: str) -> None:
    (problem,) = problems({"adopt": ("local", text)})
    assert problem.startswith("adopt (from --adopt): expected a URL like ")
    assert problem.endswith(", or the word local")


def test_several_values_of_one_setting() -> None:
    spoken = ("-ngl", "99", "two words")
    assert loaded({"engine_argument": spoken}).settings.engine_argument == spoken
    assert loaded({"engine_argument": ()}).settings.engine_argument == ()
    assert loaded(environment={"LUNANEXA_ENGINE_ARGUMENT": "-ngl 99 'two words'"}).settings.engine_argument == spoken
    assert loaded(document={"engine_argument": list(spoken)}).settings.engine_argument == spoken
    assert loaded(document={"engine_argument": "-ngl 99 'two words'"}).settings.engine_argument == spoken


@pytest.mark.parametrize(
    ("value", "message"),
    [(7, "expected an array, not an integer"), (["a", 7], "expected a string"), ("'a", "quotes that are closed")],
)
def test_what_is_no_list_of_values(value: object, message: str) -> None:
    (problem,) = problems(document={"engine_argument": value})
    assert message in problem


def test_a_secret_is_never_in_the_file_itself() -> None:
    (problem,) = problems(document={"token": "lnx_planted"})
    assert "lnx_planted" not in problem
    assert 'expected a reference ("env:NAME")' in problem


def test_a_secret_by_reference_by_file_and_by_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("lnx_from_file\n")
    by_reference = loaded(environment={"MINE": "lnx_from_env"}, document={"token": "env:MINE"})
    by_file = loaded(document={"token_file": str(file)})
    by_variable = loaded(environment={"LUNANEXA_TOKEN": "lnx_variable"}, document={"token_file": str(file)})
    assert by_reference.settings.token == Secret("lnx_from_env")
    assert by_file.settings.token == Secret("lnx_from_file")
    assert str(by_file.sources["token"]) == "/etc/lunanexa.toml: token_file"
    assert by_variable.settings.token == Secret("lnx_variable")
    for result in (by_reference, by_file, by_variable):
        assert "lnx_" not in repr(result)
        assert "lnx_" not in str(result.settings.token)


STORE = "postgresql://luna:s3cret@db:6432/fleet?sslmode=require"


def test_a_store_may_have_its_password_in_a_variable_alone() -> None:
    result = loaded(environment={"LUNANEXA_STORE": STORE})
    assert result.settings.store is not None
    assert result.settings.store.value == STORE
    assert str(result.settings.store) == "postgresql://luna@db:6432/fleet"
    assert "s3cret" not in repr(result)
    for url in (STORE, "postgresql:///fleet?password=s3cret"):
        for (problem,) in (problems({"store": url}), problems(document={"store": url})):
            assert "expected a URL without a password" in problem
            assert "s3cret" not in problem


def test_a_store_without_a_password_may_be_named_anywhere() -> None:
    url = "postgresql://luna@db/fleet?passfile=/etc/lunanexa/pgpass"
    for result in (
        loaded({"store": url}),
        loaded(document={"store": url}),
        loaded(environment={"LUNANEXA_STORE": url}),
    ):
        assert result.settings.store is not None
        assert result.settings.store.value == url
    assert loaded().settings.store is None


@pytest.mark.parametrize("value", ["mysql://luna:s3cret@db/fleet", "db", "postgresql://[db", 7])
def test_what_is_no_store(value: object) -> None:
    (problem,) = problems(document={"store": value})
    assert "s3cret" not in problem
    assert "expected a URL like postgresql://" in problem or "expected a string" in problem


def test_missing_references_are_errors(tmp_path: Path) -> None:
    assert problems(document={"token": "env:NOT_THERE"}) == (
        "token (from /etc/lunanexa.toml: token): the environment has no NOT_THERE",
    )
    missing = tmp_path / "missing"
    (problem,) = problems(document={"token_file": str(missing)})
    assert problem == f"token (from /etc/lunanexa.toml: token_file): {missing}: no such file or directory"


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file or directory"):
        read_config(str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_text("listen = ")
    with pytest.raises(SettingsError, match="not TOML"):
        read_config(str(bad))


def test_the_usual_file_is_read_when_it_exists(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "etc")}
    assert load_command_settings({}, environment).settings.alias is None
    file = tmp_path / "etc" / "lunanexa" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('alias = "mine"\nlog_level = "debug"\n')
    settings = load_command_settings({}, environment).settings
    assert (settings.alias, settings.log_level) == ("mine", LogLevel.DEBUG)
    other = tmp_path / "other.toml"
    other.write_text('alias = "other"\n')
    assert load_command_settings({}, environment | {"LUNANEXA_CONFIG": str(other)}).settings.alias == "other"


def test_the_data_directory_follows_xdg() -> None:
    assert default_data_dir({"HOME": "/h"}) == "/h/.local/share/lunanexa"
    assert default_data_dir({"HOME": "/h", "XDG_DATA_HOME": "/d"}) == "/d/lunanexa"


def test_names_of_flags_and_variables() -> None:
    names: list[Any] = list(itertools.chain.from_iterable((flag_of(n), variable_of(n)) for n in ("data_dir", "slots")))
    assert names == ["--data-dir", "LUNANEXA_DATA_DIR", "--slots", "LUNANEXA_SLOTS"]
