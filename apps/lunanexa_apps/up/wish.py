"""What was asked for, read from the settings."""

from collections.abc import Sequence

from lunanexa_apps.setting_kinds import LOCAL
from lunanexa_apps.up.adopt_keys import read_adopt_keys
from lunanexa_apps.up.choice import ChoiceRefused, EngineWish
from lunanexa_apps.up.configuration import CommandSettings


def read_wish(settings: CommandSettings, local: Sequence[str]) -> EngineWish | ChoiceRefused:
    """``local``: URLs of the servers that were found on the usual ports, where they were looked for."""
    if LOCAL in settings.adopt and not local:
        return ChoiceRefused(
            message="no server that lists a model answers on the usual ports of this machine",
            hint="start one, or name it: --adopt http://127.0.0.1:11434",
        )
    urls = [url for asked in settings.adopt for url in (local if asked == LOCAL else (asked,))]
    adopt = tuple(dict.fromkeys(urls))
    keys = read_adopt_keys(None if settings.adopt_key is None else settings.adopt_key.value, adopt)
    if isinstance(keys, ChoiceRefused):
        return keys
    return EngineWish(
        model=settings.model,
        engine=settings.engine,
        binary=settings.engine_binary,
        arguments=settings.engine_argument,
        adopt=adopt,
        adopt_keys=keys,
        alias=settings.alias,
        slots=settings.slots,
        context_tokens=settings.context_tokens,
    )
