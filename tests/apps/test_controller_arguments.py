"""The controller's command line: what nodes are told of where they reach it."""

import pytest

from lunanexa_apps.controller.arguments import ControllerArguments, parse_arguments


def parsed(*words: str) -> ControllerArguments:
    return parse_arguments(["--data-dir", "/data", *words], {})


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ((), None),
        (("--node-listen", "10.0.0.1:8401"), "https://10.0.0.1:8401"),
        (("--node-listen", "[fd00::1]:8401"), "https://[fd00::1]:8401"),
        (("--node-listen", "ctl.example:8401"), "https://ctl.example:8401"),
        (("--node-listen", "127.0.0.1:0"), None),
        (("--node-listen", "0.0.0.0:8401"), None),
        (("--node-listen", "[::]:8401"), None),
        (("--node-listen", "0.0.0.0:8401", "--node-url", "https://ctl.example:8401"), "https://ctl.example:8401"),
        (("--node-listen", "0.0.0.0:8401", "--node-url", "https://[fd00::1]:8401/"), "https://[fd00::1]:8401"),
        (("--node-listen", "10.0.0.1:8401", "--node-url", "none"), None),
    ],
)
def test_which_address_nodes_are_told(words: tuple[str, ...], url: str | None) -> None:
    assert parsed(*words).node_url == url


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data-dir", ""), "argument --data-dir: it is empty: name the directory"),
        (("--node-url", "https://ctl.example:8401"), "--node-url: there is no listener for nodes; add --node-listen"),
        (
            ("--node-listen", "h:1", "--node-url", "http://ctl:1"),
            "'http://ctl:1' is neither https://HOST:PORT nor none",
        ),
        (("--node-listen", "h:1", "--node-url", "https://ctl"), "'https://ctl' is neither https://HOST:PORT nor none"),
    ],
)
def test_a_place_that_is_none_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*words)
    assert message in capsys.readouterr().err
