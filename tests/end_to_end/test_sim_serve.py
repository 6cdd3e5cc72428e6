"""``lunanexa-sim serve`` as a program, used by strangers: openai, websockets, httpx2."""

import json
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
import jsonschema_rs
import openai
import pytest
import trio
from websockets import Subprotocol
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import ClientConnection, connect

from lunanexa_simulation.documents import simulation_schema

pytestmark = pytest.mark.slow

LIMIT_S: Final = 60.0
QUESTION: Final = {"role": "user", "content": "Tell me of the sea"}
TOKENS: Final = 100
BROKEN: Final = (openai.APIError, httpx2.TransportError)


@attrs.frozen
class Simulated:
    """One session that runs."""

    origin: str
    access: dict[str, str]
    begun: Counter[str] = attrs.Factory(Counter)
    """The faults that were asked for."""

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.access["base_url"], api_key=self.access["api_key"], max_retries=0, timeout=LIMIT_S
        )

    def get(self, path: str) -> Any:
        return httpx2.get(self.origin + path, timeout=LIMIT_S).json()

    def begin(self, **fault: object) -> int:
        answer = httpx2.post(f"{self.origin}/sim/faults", json=fault, timeout=LIMIT_S)
        assert answer.status_code == 201, answer.text
        self.begun[f"fault {fault['kind']}"] += 1
        return int(answer.json()["id"])

    def heal(self, number: int) -> None:
        assert httpx2.delete(f"{self.origin}/sim/faults/{number}", timeout=LIMIT_S).status_code == 202

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.move_on_after(LIMIT_S):
            while not holds():
                await trio.sleep(0.05)
            return
        raise AssertionError(self.get("/sim"))

    def is_well(self) -> bool:
        shown = self.get("/sim")
        return not shown["faults"] and int(shown["routable"]) == len(shown["nodes"])

    def answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(
                    client.chat.completions.create(**question(max_tokens=4)).choices[0].finish_reason == "length"
                )
            except BROKEN:
                return False


def question(**changes: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [QUESTION], "seed": 7, "max_tokens": TOKENS}
    return {**body, "extra_body": {"ignore_eos": True}, **changes}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    """That it ends well, and that no invariant was broken meanwhile, is part of each run."""
    document = tmp_path_factory.mktemp("serve") / "serve.json"
    command = [sys.executable, "-m", "lunanexa_simulation.main", "serve"]
    options = ["--nodes", "2", "--seed", "3", "--listen", "127.0.0.1:0", "--json", str(document)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            origin = next(line.split()[1] for line in process.stderr if line.startswith("console")).removesuffix("/sim")
            used = Simulated(origin, httpx2.get(f"{origin}/sim", timeout=LIMIT_S).json()["access"])
            yield used
            process.send_signal(signal.SIGINT)
            told, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, (told, errors)
    _is_sound(document, told, used)


def _is_sound(path: Path, told: str, used: Simulated) -> None:
    document = json.loads(path.read_text())
    jsonschema_rs.validator_for(simulation_schema()).validate(document)
    assert (document["kind"], document["verdict"], document["nodes"]) == ("serve", "held", 2)
    assert document["hardware_performance_validated"] is False
    assert document["quiescent_instants"] > 5
    assert {one["verdict"] for one in document["invariants"]} == {"held"}
    assert {what: count for what, count in document["happened"].items() if what.startswith("fault ")} == used.begun
    assert "serve seed 3: held" in told


def test_a_stranger_lists_completes_and_streams(simulated: Simulated) -> None:
    with simulated.client() as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        whole = client.chat.completions.create(**question())
        assert whole.usage is not None
        assert whole.usage.completion_tokens == TOKENS
        assert _stream(client, lambda: None) == (whole.choices[0].message.content, True)
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{simulated.origin}/v1", api_key="x") as no:
        no.models.list()


@pytest.mark.parametrize("kind", ["engine-dies", "agent-down", "data-cut"])
async def test_an_answer_under_a_fault_is_whole_or_honestly_broken(simulated: Simulated, kind: str) -> None:
    expected = _expected(simulated)
    fault = {} if kind == "engine-dies" else {"for_ms": 1_500}
    with simulated.client() as client:
        text, whole = _stream(client, lambda: _everywhere(simulated, kind=kind, **fault))
    assert expected.startswith(text)
    assert whole == (text == expected)
    await simulated.until(simulated.is_well)
    assert simulated.answers()


async def test_a_controller_that_is_killed_breaks_streams_and_comes_back(simulated: Simulated) -> None:
    expected, down = _expected(simulated), []
    with simulated.client() as client:
        text, whole = _stream(client, lambda: down.append(simulated.begin(kind="controller-down")))
        assert not whole
        assert expected.startswith(text)
        with pytest.raises(openai.InternalServerError) as refused:
            client.models.list()
        assert (refused.value.status_code, refused.value.code) == (502, "controller_unreachable")
    simulated.heal(*down)
    await simulated.until(simulated.is_well)
    await simulated.until(simulated.answers)


async def test_a_strangers_websocket_is_served_and_broken(simulated: Simulated) -> None:
    with _websocket(simulated) as client:
        request = {"model": "tiny", "messages": [QUESTION], "max_tokens": 8, "ignore_eos": True, "stream": True}
        client.send(json.dumps({"type": "submit", "id": "a", "endpoint": "chat/completions", "request": request}))
        frames = [json.loads(client.recv(timeout=LIMIT_S))]
        while frames[-1]["type"] != "completed":
            frames.append(json.loads(client.recv(timeout=LIMIT_S)))
        assert [frame["type"] for frame in frames][:2] == ["accepted", "event"]
        assert frames[-1]["response"]["usage"]["output"] == 8
        simulated.begin(kind="controller-down", for_ms=500)
        with pytest.raises(ConnectionClosedError) as broken:
            client.recv(timeout=LIMIT_S)
        assert broken.value.rcvd is None, "as a controller that dies: without a close frame"
    await simulated.until(simulated.is_well)
    await simulated.until(simulated.answers)


PIECE: Final = b"10000\r\n" + b" " * 65_536 + b"\r\n"
"""64 KiB of a body without a length."""


@pytest.mark.parametrize("framing", ["content-length: 50000000", "transfer-encoding: chunked"])
def test_a_body_that_is_too_large_is_refused_by_the_product(simulated: Simulated, framing: str) -> None:
    """As soon as that must be so, by a length that is said or by what has come."""
    host, port = simulated.origin.removeprefix("http://").split(":")
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {simulated.access['api_key']}\r\n"
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as client:
        client.sendall(f"{head}{framing}\r\n\r\n".encode())
        sent_bytes = 0
        while "chunked" in framing and not select.select([client], [], [], 0)[0]:
            client.sendall(PIECE)
            sent_bytes += len(PIECE)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    told, _, body = answer.partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 413 "), told
    assert b"connection: close" in told.lower()
    assert json.loads(body)["error"]["code"] == "payload_too_large"
    assert "1048576 bytes" in json.loads(body)["error"]["message"]
    assert sent_bytes < 50_000_000


def test_a_body_in_pieces_is_taken(simulated: Simulated) -> None:
    prompt = question(max_tokens=4)
    body = json.dumps({**prompt, **prompt.pop("extra_body"), "user": "x" * 500_000}).encode()
    answer = httpx2.post(
        f"{simulated.origin}/v1/chat/completions",
        content=iter([body[:10], body[10:300_000], body[300_000:]]),
        headers={"authorization": f"Bearer {simulated.access['api_key']}", "content-type": "application/json"},
        timeout=LIMIT_S,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_a_fault_that_is_none_names_the_field(simulated: Simulated) -> None:
    for fault, param in (({"kind": "agent-away"}, "kind"), ({"kind": "agent-down", "target": 9}, "target")):
        answer = httpx2.post(f"{simulated.origin}/sim/faults", json=fault, timeout=LIMIT_S)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_wrong_addresses_are_wrong_usage(simulated: Simulated) -> None:
    command = [sys.executable, "-m", "lunanexa_simulation.main", "serve", "--listen"]
    for address in ("nowhere", simulated.origin.removeprefix("http://")):
        ended = subprocess.run([*command, address], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert ended.returncode == 64, ended
        assert "--listen" in ended.stderr


def _expected(simulated: Simulated) -> str:
    with simulated.client() as client:
        return client.chat.completions.create(**question()).choices[0].message.content or ""


def _everywhere(simulated: Simulated, **fault: object) -> None:
    """Wherever the stream is worked on."""
    for target in (1, 2):
        simulated.begin(target=target, **fault)


def _stream(client: openai.OpenAI, when_it_runs: Callable[[], object]) -> tuple[str, bool]:
    """The text that came, and whether it came to its end."""
    text = ""
    try:
        with client.chat.completions.create(**question(stream=True)) as stream:
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    if not text:
                        when_it_runs()
                    text += chunk.choices[0].delta.content
    except BROKEN:
        return text, False
    return text, True


def _websocket(simulated: Simulated) -> ClientConnection:
    url = simulated.access["base_url"].replace("http://", "ws://") + "/stream"
    key = {"authorization": f"Bearer {simulated.access['api_key']}"}
    return connect(url, additional_headers=key, subprotocols=[Subprotocol("lunanexa.v1")])
