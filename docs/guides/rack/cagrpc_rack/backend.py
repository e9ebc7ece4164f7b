"""Machines of a rack, which is asked by files."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cagrpc import errors
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.runtime.clock import EpochClock


class RackBackend:
    pace = Pace()  # a directory shows every file at once

    def __init__(self, spool: Path, fleet: str, clock: EpochClock) -> None:
        self._spool = spool
        self._fleet = fleet
        self._clock = clock

    @property
    def problem(self) -> str | None:
        return None if (self._spool / "controller").exists() else f"no controller reads {self._spool}"

    def list_instances(self) -> Listing:
        as_of = self._clock()  # before the look: what is called during it need not be in the list
        try:
            requests = [json.loads(path.read_text()) for path in self._spool.glob("*.request")]
        except OSError as error:
            raise errors.Unavailable(f"{self._spool}: {error}") from error
        ours = [each for each in requests if each["fleet"] == self._fleet]
        ours.sort(key=lambda each: (each["asked_at"], each["token"]))
        found = (self._instance(each) for each in ours)
        return Listing(tuple(each for each in found if each is not None), as_of)

    def order(self, order: Order) -> None:
        wanted = [each for each in order.instances if each.token in order.wanted]
        closed = sorted({each.group.id for each in wanted if (self._spool / f"{each.group.id}.closed").exists()})
        if closed:
            raise errors.OrderMisconfigured(f"the rack does not know {', '.join(closed)}", closed)
        for each in wanted:
            request = {
                "fleet": self._fleet,
                "token": each.token,
                "node_group": each.group.id,
                "asked_at": self._clock(),
            }
            self._write_once(self._path(each.token, "request"), request)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        for each in instances:
            if self._path(each.token, "request").exists():
                self._write_once(self._path(each.token, "delete"), {})

    def _instance(self, request: dict[str, Any]) -> BackendInstance | None:
        token = request["token"]
        path = self._path(token, "state")
        state = json.loads(path.read_text()) if path.exists() else {}
        if state.get("gone"):
            return None  # its request stays, so that its token is never used again
        phase, error = InstanceState.CREATING, None
        if self._path(token, "delete").exists():
            phase = InstanceState.DELETING
        elif "error" in state:
            error = InstanceError("no-machine", state["error"], ErrorKind.CAPACITY, state.get("retry_after_seconds"))
        elif state.get("running"):
            phase = InstanceState.RUNNING
        return BackendInstance(state.get("id", token), token, request["node_group"], phase, error)

    def _write_once(self, path: Path, content: dict[str, Any]) -> None:
        """Write a file whole, or not at all where it exists."""
        draft = path.with_suffix(f"{path.suffix}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(content))
            path.hardlink_to(draft)
        except FileExistsError:
            return
        except OSError as error:
            raise errors.Unavailable(f"{path}: {error}") from error
        finally:
            draft.unlink(missing_ok=True)

    def _path(self, token: str, suffix: str) -> Path:
        return self._spool / f"{hashlib.sha256(token.encode()).hexdigest()[:32]}.{suffix}"
