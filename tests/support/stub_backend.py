"""A backend outside of everything that is tested: its own process, its own append-only log, one JSON line per call over
a local socket. It is the witness of the crash tests, since the journal can be none for itself.

Run as a script with the path of the log; prints the port it listens on. Every call names its `world`, and worlds know
nothing of each other. What an instance does depends on how often it was listed, never on time: it runs (or fails) from
the second listing on, and is gone after it was listed as being deleted once.
"""

from __future__ import annotations

import json
import socketserver
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class StubInstance:
    id: str
    token: str
    node_group: str
    state: str = "creating"
    failed: bool = False
    listings: int = 0


@dataclass
class StubWorld:
    refuse: bool = False
    fail_from: int | None = None
    """Instances from this number on (counted from 0) fail while they are created."""
    instances: dict[str, StubInstance] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)


class Stub:
    def __init__(self, log: Path) -> None:
        self.worlds: dict[str, StubWorld] = {}
        self.log = log.open("a")

    def answer(self, call: dict[str, Any]) -> Any:
        if call["call"] == "behave":
            self.worlds[call["world"]] = StubWorld(call["refuse"], call["fail_from"])
            return None
        world = self.worlds[call["world"]]
        match call["call"]:
            case "list":
                return self.listed(world)
            case "look":
                return [asdict(instance) for instance in world.instances.values()]
            case "order":
                return self.order(call["world"], world, call["orders"])
            case "delete":
                return self.delete(call["world"], world, call["ids"])
        raise ValueError(call)

    def listed(self, world: StubWorld) -> list[dict[str, Any]]:
        answer = []
        for number, instance in enumerate(tuple(world.instances.values())):
            instance.listings += 1
            if instance.state == "creating" and instance.listings >= 2:
                instance.failed = world.fail_from is not None and number >= world.fail_from
                instance.state = "creating" if instance.failed else "running"
            answer.append(asdict(instance))
            if instance.state == "deleting":
                del world.instances[instance.id]
        return answer

    def order(self, name: str, world: StubWorld, orders: list[list[str]]) -> str:
        if world.refuse:
            return "refused"
        for token, group_id in orders:
            if token not in world.tokens:
                world.tokens.add(token)
                instance = StubInstance(f"stub://{name}-{len(world.tokens)}", token, group_id)
                world.instances[instance.id] = instance
                self.write(name, "order", token)
        return "taken"

    def delete(self, name: str, world: StubWorld, ids: list[str]) -> None:
        for instance_id in ids:
            instance = world.instances.get(instance_id)
            if instance is not None and instance.state != "deleting":
                instance.state = "deleting"
                self.write(name, "delete", instance_id)

    def write(self, world: str, what: str, which: str) -> None:
        self.log.write(json.dumps([world, what, which]) + "\n")
        self.log.flush()


def main() -> None:
    stub = Stub(Path(sys.argv[1]))

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            answer = stub.answer(json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    class Server(socketserver.TCPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A caller that was killed does not take its answer: that is what this is for."""
            if not isinstance(sys.exc_info()[1], OSError):
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
