"""The options of ``lunanexa-engine``: flag, then environment for the key, then default."""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from lunanexa_apps.engine.faults import FaultKind, parse_fault
from lunanexa_apps.engine.settings import EngineSettings, Mode

API_KEY_VARIABLE = "LUNANEXA_ENGINE_API_KEY"


@attrs.frozen(kw_only=True)
class Options:
    engine: EngineSettings
    host: str
    port: int
    ready_file: Path | None
    drain_ms: int


def read_options(arguments: Sequence[str], environment: Mapping[str, str], version: str) -> Options:
    """Ends the process with status 2 and a sentence where an option is wrong."""
    parser = _parser(version)
    given = parser.parse_args(arguments)
    try:
        key = _api_key(given, environment)
        names = tuple(given.alias or ["reference"])
        for text in (*names, key or ""):
            text.encode("utf-8")
        if not all(names) or len(set(names)) != len(names):
            raise ValueError("--alias must be given different names, none of them empty")
        engine = EngineSettings(
            names=names,
            mode=Mode(given.mode),
            ttft_ms=given.ttft_ms,
            itl_ms=given.itl_ms,
            slots=given.slots,
            queue=given.queue,
            context_tokens=given.context_length,
            seed=given.seed,
            api_key=key,
            max_body_bytes=given.max_body_bytes,
            version=version,
            faults=tuple(parse_fault(text) for text in given.fault or ()),
            allow_faults=given.allow_faults,
        )
        if not 0 <= given.port <= 65_535 or given.drain_ms < 0:
            raise ValueError("--port must be from 0 to 65535, and --drain-ms not negative")
    except UnicodeError:
        parser.error("names and keys must be valid Unicode")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return Options(
        engine=engine, host=given.host, port=given.port, ready_file=given.ready_file, drain_ms=given.drain_ms
    )


def _api_key(given: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    key: str | None = given.api_key or environment.get(API_KEY_VARIABLE) or None
    if given.api_key_file is not None:
        key = given.api_key_file.read_text(encoding="utf-8").strip()
        if not key:
            raise ValueError(f"{given.api_key_file} holds no key")
    return key


def _milliseconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


class _DefaultsWhereThereAreSome(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _parser(version: str) -> argparse.ArgumentParser:
    defaults = EngineSettings()
    parser = argparse.ArgumentParser(
        prog="lunanexa-engine",
        description="OpenAI-compatible reference engine: an n-gram language model, no GPU, for trials and tests.",
        formatter_class=_DefaultsWhereThereAreSome,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=0, help="port; 0 takes a free one, see --ready-file")
    add("--alias", action="append", help="name of the model, 'reference' without; again for more names: the first "
        "is told in answers, all are accepted")  # fmt: skip
    add("--mode", choices=[mode.value for mode in Mode], default=defaults.mode.value,
        help="generate, or repeat the last user message")  # fmt: skip
    add("--ttft-ms", type=_milliseconds, default=defaults.ttft_ms, help="time to the first token")
    add("--itl-ms", type=_milliseconds, default=defaults.itl_ms, help="time from one token to the next")
    add("--slots", type=int, default=defaults.slots, help="generations at the same time")
    add("--queue", type=int, default=defaults.queue, help="requests that may wait; more are answered 429")
    add("--context-length", type=int, default=defaults.context_tokens, help="tokens of prompt and answer together")
    add("--seed", type=int, default=defaults.seed, help="seed of requests that bring none")
    add("--api-key", help=f"key to ask for; every user of the machine can read it here, so prefer "
        f"--api-key-file or {API_KEY_VARIABLE}")  # fmt: skip
    add("--api-key-file", type=Path, help="file that holds the key")
    add("--max-body-bytes", type=int, default=defaults.max_body_bytes, help="longer requests are answered 413")
    add("--ready-file", type=Path, help="written when the engine serves: JSON with host, port and pid")
    add("--drain-ms", type=int, default=5_000, help="time for running generations after SIGTERM")
    add("--fault", action="append", metavar="KIND[=N][,after=N][,count=N]", help="for tests: misbehave, from the "
        "call after AFTER others on, COUNT times or always; again for more: " + ", ".join(k.value for k in FaultKind),
        )  # fmt: skip
    add("--allow-faults", action="store_true", help="for tests: serve /faults, which shows and changes the faults")
    add("--version", action="version", version=f"lunanexa-engine {version}")
    return parser
