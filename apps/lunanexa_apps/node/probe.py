"""One look at an engine over HTTP: is it well, who is it, how busy is it."""

import attrs
import trio

from lunanexa_core.drivers.driver import Driver, Health, IdentityFinding, IdentityQuestion
from lunanexa_core.drivers.metrics import MAX_BODY_BYTES, read_metrics
from lunanexa_core.southbound.heartbeat import EngineReadings
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpClient, HttpRequest


@attrs.frozen(kw_only=True)
class ProbeTarget:
    """An engine's address, and whom we expect there."""

    driver: Driver
    host: str
    port: int
    engine_key: str | None = attrs.field(repr=False)
    question: IdentityQuestion


@attrs.frozen(kw_only=True)
class Look:
    """What was seen. ``health`` is ``None`` without an answer; the others only of an engine that is ready."""

    health: Health | None = None
    finding: IdentityFinding | None = None
    readings: EngineReadings | None = None


async def look(http: HttpClient, target: ProbeTarget, timeout_ms: int) -> Look:
    """Health, then identity, then metrics; the first that fails ends the look. Never raises for the engine."""
    driver = target.driver
    health = await _get(http, target, driver.health_path, timeout_ms)
    if health is None:
        return Look()
    judged = driver.judge_health(*health)
    if judged is not Health.READY:
        return Look(health=judged)
    models = await _get(http, target, driver.models_path, timeout_ms)
    if models is None or models[0] != 200:
        return Look(health=judged, finding=IdentityFinding.UNREADABLE)
    finding = driver.identify(models[1], target.question)
    if driver.metrics is None or driver.metrics_path is None:
        return Look(health=judged, finding=finding)
    metrics = await _get(http, target, driver.metrics_path, timeout_ms)
    readings = read_metrics(metrics[1], driver.metrics) if metrics is not None and metrics[0] == 200 else None
    return Look(health=judged, finding=finding, readings=readings)


async def _get(http: HttpClient, target: ProbeTarget, path: str, timeout_ms: int) -> tuple[int, bytes] | None:
    key = target.engine_key
    request = HttpRequest(
        method="GET",
        host=target.host,
        port=target.port,
        target=path,
        headers=() if key is None else ((b"authorization", f"Bearer {key}".encode()),),
        connect_timeout_ms=timeout_ms,
    )
    with trio.move_on_after(timeout_ms / 1_000):
        try:
            async with http.exchange(request) as response:
                return response.status, await response.read(MAX_BODY_BYTES)
        except PortError:
            return None
    return None
