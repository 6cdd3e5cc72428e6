"""Refused: a port method that is missing, changed, or called without being awaited."""

from contextlib import AbstractAsyncContextManager

from lunanexa_ports.http_client import HttpClient, HttpRequest, HttpResponse


class WithoutClose(HttpClient):
    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        raise NotImplementedError


class ChangedExchange(HttpClient):
    def exchange(self, request: str) -> AbstractAsyncContextManager[HttpResponse]:  # says mypy: override  # says pyright: reportIncompatibleMethodOverride
        raise NotImplementedError

    async def aclose(self) -> None:
        return None


MISSING: HttpClient = WithoutClose()  # says mypy: abstract  # says pyright: reportAbstractUsage


async def forgets_to_await(client: HttpClient) -> None:
    client.aclose()  # says mypy: unused-coroutine  # says pyright: reportUnusedCallResult  # says pyright: reportUnusedCoroutine
