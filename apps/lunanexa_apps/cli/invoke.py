"""``lunanexa invoke``: asks a model and streams its answer to the terminal."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs
import click
import trio

from lunanexa_apps.cli.completion import Measures, Question, Transcript, result_document
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options, settings_or_exit
from lunanexa_apps.cli.target import Target, fail_refused, fail_unreachable, find_target
from lunanexa_apps.cli.tools import Tools, fail, printable, wants_color
from lunanexa_apps.up.plane import ANSWER_LIMIT_BYTES, Plane, PlaneRefusal, parse_json, refusal_of
from lunanexa_core.outcomes import TABLE, Outcome
from lunanexa_core.sse import SseEventTooLong, SseSplitter
from lunanexa_ports.errors import PortError, PortFault

EVENT_LIMIT_BYTES: Final = 4 << 20
STDIN: Final = "-"


@attrs.frozen(kw_only=True)
class Answer:
    """What came back. ``model`` is the one that was asked."""

    model: str
    transcript: Transcript
    measures: Measures
    headers: dict[str, str]


@click.command("invoke")
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]")
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer, in tokens.")
@click.option("--temperature", type=click.FloatRange(0, 5), help="Sampling temperature.")
@setting_options("data_dir", "url", "token_file", metavar={"data_dir": "DIR", "url": "URL", "token_file": "FILE"})
@config_option
@output_option
@click.pass_obj
def command(
    tools: Tools,
    /,
    words: tuple[str, ...],
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Ask MODEL (the first one that is served, unless named) and stream its answer.

    One argument alone is the prompt. Without any, or with - for PROMPT, it is read from standard input. The
    answer alone goes to standard output; time to the first token, tokens a second, time in the queue and
    tokens go to standard error.
    """
    target = find_target(tools, settings_or_exit(flags, config))
    _refuse_bytes(*words, system or "")
    model, prompt = _model_and_prompt(words)
    question = Question(model=model or "", prompt=prompt, system=system, max_tokens=max_tokens, temperature=temperature)
    show = _ignore if output == JSON else _show
    result = tools.run(partial(_ask, tools, target, question, show))
    match result:
        case PlaneRefusal():
            fail_refused(target, result, token_name="an API key")
        case PortError():
            fail_unreachable(target, result)
        case _:
            _finish(result, output)


def _model_and_prompt(words: tuple[str, ...]) -> tuple[str | None, str]:
    match words:
        case () | ("-",):
            model, prompt = None, STDIN
        case (only,):
            model, prompt = None, only
        case (first, second):
            model, prompt = first, second
        case _:
            raise click.UsageError("too many arguments: put the prompt in quotes")
    if prompt == STDIN:
        prompt = _standard_input()
    if not prompt.strip():
        raise click.UsageError("the prompt is empty")
    return model, prompt


def _standard_input() -> str:
    # It is None where the shell closed it.
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError('no prompt: lunanexa invoke "Hello", or pipe one in')
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise click.UsageError("standard input is not UTF-8 text") from None


def _refuse_bytes(*texts: str) -> None:
    """What is not UTF-8 in the arguments comes as lone surrogates, which no JSON text can carry."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise click.UsageError("an argument is not UTF-8 text") from None


async def _ask(
    tools: Tools, target: Target, question: Question, show: Callable[[str], None]
) -> Answer | PlaneRefusal | PortError:
    http = tools.make_http()
    try:
        plane = target.data_plane(http)
        if not question.model:
            found = await _first_model(plane)
            if isinstance(found, PlaneRefusal):
                return found
            question = attrs.evolve(question, model=found)
        return await _stream(plane, question, show)
    except PortError as error:
        return error
    finally:
        with trio.move_on_after(1, shield=True):
            await http.aclose()


async def _first_model(plane: Plane) -> str | PlaneRefusal:
    answer: Any = await plane.ask("GET", "/v1/models")
    if isinstance(answer, PlaneRefusal):
        return answer
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list):
        raise PortFault("its list of models can't be read")
    for card in cards:
        if isinstance(card, dict) and isinstance(card.get("id"), str):
            return str(card["id"])
    row = TABLE[Outcome.NO_CAPACITY]
    return PlaneRefusal(status=row.http_status, code=Outcome.NO_CAPACITY.value, message="no model is served now")


async def _stream(plane: Plane, question: Question, show: Callable[[str], None]) -> Answer | PlaneRefusal:
    request = plane.request("POST", "/v1/chat/completions", question.document(), timeout_ms=None)
    transcript, splitter = Transcript(), SseSplitter(EVENT_LIMIT_BYTES)
    began = trio.current_time()
    first = last = None
    async with plane.http.exchange(request) as response:
        if response.status != 200:
            return refusal_of(response.status, parse_json(await response.read(ANSWER_LIMIT_BYTES)))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        async for data in response.chunks():
            try:
                events = splitter.feed(data)
            except SseEventTooLong as error:
                raise PortFault(str(error)) from error
            for event in events:
                text = transcript.take(event)
                if text:
                    last = trio.current_time()
                    first = last if first is None else first
                    show(text)
    queue_ms = headers.get("x-lunanexa-queue-ms", "")
    usage = transcript.usage or {}
    return Answer(
        model=question.model,
        transcript=transcript,
        measures=Measures(
            began=began,
            first_text=first,
            last_text=last,
            ended=trio.current_time(),
            queue_ms=int(queue_ms) if queue_ms.isdigit() else None,
            input_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
        ),
        headers=headers,
    )


def _show(text: str) -> None:
    click.echo(printable(text) if sys.stdout.isatty() else text, nl=False)


def _ignore(_: str) -> None:
    return


def _finish(answer: Answer, output: str) -> None:
    transcript = answer.transcript
    if output == JSON:
        click.echo(result_document(answer.model, transcript, answer.measures, answer.headers))
    else:
        if transcript.content and not transcript.content.endswith("\n"):
            click.echo()
        click.echo(click.style(answer.measures.line(), dim=True), err=True, color=wants_color())
    if transcript.refusal is not None:
        fail(f"the answer was cut: {transcript.refusal.text}", exit_code=transcript.refusal.exit_code)
    if not transcript.done:
        fail("the answer ended before its end was announced", exit_code=TABLE[Outcome.ENGINE_FAILED].exit_code)
