"""What ``lunanexa up`` tells its user, without saying how it looks: ``cli/`` draws it, a test records it."""

from abc import abstractmethod
from typing import Protocol

import attrs

from lunanexa_apps.up.supervisor import ChildEnded


@attrs.frozen(kw_only=True)
class Announcement:
    """All that a user needs for the first call."""

    base_url: str
    api_key: str = attrs.field(repr=False)
    api_key_file: str
    operator_token_file: str
    models: tuple[str, ...]
    engine: str
    data_dir: str


@attrs.frozen(kw_only=True)
class Failure:
    """Why ``up`` gave up: in one line, with what the failed part last said, and what to do next."""

    message: str
    details: tuple[str, ...] = ()
    hint: str | None = None
    exit_code: int = 1


class Screen(Protocol):
    """A terminal or a log. No method waits."""

    @abstractmethod
    def progress(self, text: str) -> None:
        """What is being waited for now. Replaces the last one; the same text again changes nothing."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Something worth keeping on the screen."""

    @abstractmethod
    def child_ended(self, end: ChildEnded) -> None:
        """A process crashed and will be restarted."""

    @abstractmethod
    def serving(self, announcement: Announcement) -> None:
        """The first call would succeed now."""

    @abstractmethod
    def failed(self, failure: Failure) -> None:
        """It did not work."""

    @abstractmethod
    def settled(self) -> None:
        """Nothing is being waited for any more."""
