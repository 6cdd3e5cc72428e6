"""``lunanexa invoke``: asks a model and streams its answer to the terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import attrs
import click
import trio

from lunanexa_apps.call_errors import exit_code_of, words_of
from lunanexa_apps.cli.asking import API_KEY, use_client
from lunanexa_apps.cli.complete import complete_models
from lunanexa_apps.cli.completion import Measures, Question, Transcript, result_document
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options, settings_or_exit
from lunanexa_apps.cli.target import fail_with, find_target
from lunanexa_apps.cli.tools import Tools, fail, printable, wants_color
from lunanexa_client import AsyncClient, LunaNexaError, Unavailable
from lunanexa_client.errors import ErrorFacts
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Dialect

STDIN: Final = "-"


@attrs.frozen(kw_only=True)
class Answer:
    """What came back. ``model`` is the one that was asked; ``cut`` is what ended the answer early."""

    model: str
    transcript: Transcript
    cut: LunaNexaError | None
    measures: Measures
    headers: Mapping[str, str]


@click.command("invoke")
@click.argument("words", shell_complete=complete_models, nargs=-1, metavar="[MODEL] [PROMPT]")
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
    with _waiting(show) as told:
        result = tools.run(partial(use_client, tools, target.client_settings(), partial(_ask, question, told)))
    if isinstance(result, LunaNexaError):
        fail_with(target, result, token_name=API_KEY)
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


async def _ask(question: Question, show: Callable[[str], None], client: AsyncClient) -> Answer:
    if not question.model:
        question = attrs.evolve(question, model=await _first_model(client))
    return await _stream(client, question, show)


async def _first_model(client: AsyncClient) -> str:
    for model in await client.models():
        return model.id
    raise Unavailable("no model is served now", ErrorFacts(code=Outcome.NO_CAPACITY.value))


async def _stream(client: AsyncClient, question: Question, show: Callable[[str], None]) -> Answer:
    transcript, cut = Transcript(), None
    began = trio.current_time()
    first = last = None
    async with client.stream(Dialect.CHAT.value, question.document()) as events:
        try:
            async for event in events:
                text = transcript.take(event)
                if text:
                    last = trio.current_time()
                    first = last if first is None else first
                    show(text)
        except LunaNexaError as error:
            cut = error
    usage = transcript.usage or {}
    return Answer(
        model=question.model,
        transcript=transcript,
        cut=cut,
        measures=Measures(
            began=began,
            first_text=first,
            last_text=last,
            ended=trio.current_time(),
            queue_ms=events.head.queue_ms,
            input_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
        ),
        headers=events.head.headers,
    )


@contextlib.contextmanager
def _waiting(show: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """On a terminal a line says that an answer is waited for, until its first words are there."""
    waits = sys.stderr.isatty()
    if waits:
        click.echo("waiting for the answer …", err=True, nl=False)

    def end() -> None:
        nonlocal waits
        if waits:
            click.echo("\r\x1b[K", err=True, nl=False, color=True)
        waits = False

    def told(text: str) -> None:
        end()
        show(text)

    try:
        yield told
    finally:
        end()


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
    if answer.cut is not None:
        fail(f"the answer was cut: {words_of(answer.cut)}", exit_code=exit_code_of(answer.cut))
