"""Log lines: one JSON object each, in a fixed order; a plain form for people."""

import io
import json
import logging

import pytest
import structlog

from lunanexa_apps.logging import configure_logging, level_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_json_object_a_line_in_order() -> None:
    stream = io.StringIO()
    configure_logging(level="info", stream=stream)
    logger = structlog.get_logger()
    logger.debug("hidden")
    logger.info("child_started", name="node", pid=7)
    logger.warning("child_ended", detail="two\nlines")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [list(line) for line in lines] == [
        ["ts", "level", "event", "name", "pid"],
        ["ts", "level", "event", "detail"],
    ]
    assert lines[0]["event"] == "child_started"
    assert lines[1]["level"] == "warning"


def test_an_exception_stays_on_one_line() -> None:
    stream = io.StringIO()
    configure_logging(level="info", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger().exception("fault")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["exception"]


def test_library_records_take_the_same_form() -> None:
    stream = io.StringIO()
    configure_logging(level="debug", stream=stream)
    logging.getLogger("somebody").warning("odd %s", "thing")
    logging.getLogger("somebody").info("chatter")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line) | {"ts": ""} == {
        "ts": "",
        "level": "warning",
        "event": "odd thing",
        "logger": "somebody",
    }


def test_people_get_plain_lines_and_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    configure_logging(level="info", stream=stream)
    structlog.get_logger().info("child_started", name="node")
    assert "\x1b[" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    configure_logging(level="info", stream=plain)
    structlog.get_logger().info("child_started", name="node")
    assert "\x1b[" not in plain.getvalue()
    assert "child_started" in plain.getvalue()
    assert "name=node" in plain.getvalue()


@pytest.mark.parametrize(
    ("inherited", "verbose", "level"),
    [("", False, "info"), ("warning", False, "warning"), ("loud", False, "info"), ("warning", True, "debug")],
)
def test_the_level_of_a_supervised_process(inherited: str, verbose: bool, level: str) -> None:
    assert level_of({"LUNANEXA_LOG_LEVEL": inherited}, verbose=verbose) == level


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_went_away_ends_nothing() -> None:
    configure_logging(level="info", stream=Gone())
    structlog.get_logger().error("still_here")


def test_what_callers_name_does_not_steer_a_terminal() -> None:
    stream = Terminal()
    configure_logging(level="info", stream=stream, human=True)
    structlog.get_logger().info("request", alias="\x1b[2J", other="a\x9bm", fine="zwölf")
    line = stream.getvalue()
    assert "\x1b[2J" not in line
    assert "\x9b" not in line
    assert "zwölf" in line
