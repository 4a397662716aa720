"""The engine's process. Started by :mod:`.process` with a :class:`Boot` as its only argument."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import torch

from longrein.engines.base import EngineInfo
from longrein.engines.local import wire
from longrein.engines.local.adapted import AdaptedModule
from longrein.engines.local.boot import Boot
from longrein.engines.local.cores import ThreadCount
from longrein.engines.local.mailbox import Closed, Letter, Mailbox, Opened
from longrein.engines.local.model import load_model
from longrein.engines.local.row import Ticket
from longrein.engines.local.scheduler import Scheduler
from longrein.engines.local.shortage import ShortageError, shortage
from longrein.engines.local.weights import make_manifest

_PARENT_CHECK_S = 0.5


class Server:
    """The loop: read what came, compute one step, answer."""

    def __init__(self, boot: Boot) -> None:
        self._model = load_model(boot.config)
        manifest = make_manifest(self._model.module)
        self._weights = AdaptedModule(self._model.module, manifest, boot.weights_fd)
        self._scheduler = Scheduler(self._model, boot.config)
        self._threads = ThreadCount(boot.config.threads)
        self._info = EngineInfo(
            model=boot.config.model, context_length=self._model.context_length, vocab_size=self._model.vocab_size
        )
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(boot.socket_path)
        listener.listen()
        self._mailbox: Mailbox[wire.Request] = Mailbox(listener, msgspec.msgpack.Decoder(wire.Request))
        self._owner = socket.socket(fileno=boot.owner_fd)
        self._owner_decoder = msgspec.msgpack.Decoder(wire.FromOwner)
        self._paused = False
        self._mailbox.watch(self._owner)
        self._owner.sendall(wire.pack(wire.Ready(info=self._info, manifest=manifest)))

    def run(self) -> None:
        """Until the owner closes its end."""
        while True:
            for letter in self._mailbox.poll(0 if self._busy else None):
                self._read(letter)
            if not self._obey_owner():
                return
            if self._busy:
                self._take_threads(self._threads.look())
                self._scheduler.step()
            for report in self._scheduler.take_reports():
                self._mailbox.send(report.connection, report.frame)
            for answer in self._scheduler.take_answers():
                self._mailbox.send(answer.ticket.connection, answer.reply)

    @staticmethod
    def _take_threads(count: int) -> None:
        if count != torch.get_num_threads():
            torch.set_num_threads(count)

    @property
    def _busy(self) -> bool:
        return not self._paused and not self._scheduler.idle

    def _read(self, letter: Letter[wire.Request | Opened | Closed]) -> None:
        match letter.frame:
            case Opened():
                self._mailbox.send(letter.connection, wire.Hello(info=self._info))
            case Closed():
                self._scheduler.disconnect(letter.connection)
            case wire.Generate() as request:
                self._scheduler.submit(Ticket(connection=letter.connection, call=request.call), request)
            case wire.Watch(call=call):
                self._scheduler.watch(Ticket(connection=letter.connection, call=call))
            case wire.Cancel(call=call):
                self._scheduler.cancel(Ticket(connection=letter.connection, call=call))
            case wire.Forget(conversation_id=conversation_id):
                self._scheduler.forget(conversation_id)

    def _obey_owner(self) -> bool:
        """Carry out the owner's command if there is one; False when the owner is gone."""
        try:
            if not self._owner.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return False
            self._owner.sendall(wire.pack(self._obey(wire.receive(self._owner, self._owner_decoder))))
        except BlockingIOError:
            return True
        except (ConnectionError, EOFError):
            return False
        return True

    def _obey(self, command: wire.FromOwner) -> wire.ToOwner:
        match command:
            case wire.Swap() | wire.SwapAdapter():
                return self._swapped(command)
            case wire.Pause() | wire.Resume():
                self._paused = isinstance(command, wire.Pause)
            case wire.ClearCache():
                self._scheduler.clear_cache()
        return wire.Obeyed()

    def _swapped(self, command: wire.NewWeights) -> wire.ToOwner:
        try:
            self._swap(command)
        except ShortageError:
            # What the cache held may be enough.
            self._scheduler.clear_cache()
            try:
                self._swap(command)
            except ShortageError as error:
                return self._not_taken(error)
        return wire.Swapped(policy_version=command.policy_version)

    def _swap(self, command: wire.NewWeights) -> None:
        with shortage():
            self._weights.take(command)
        self._scheduler.swap(command.policy_version)
        self._weights.settle()

    def _not_taken(self, error: ShortageError) -> wire.NotTaken:
        if not self._weights.unsettled:
            return wire.NotTaken(message=f"{error}; it goes on with those from before")
        why = f"{error} while weights were taken; send weights again"
        self._scheduler.unfit(why)
        return wire.NotTaken(message=why)


def main() -> None:
    """Run one engine until its owner stops it, closes its end or dies."""
    # Ctrl-C reaches the whole process group; the owner decides when the engine goes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    boot = msgspec.json.decode(sys.argv[1], type=Boot)
    threading.Thread(target=_die_with_parent, args=(boot,), daemon=True).start()
    Server(boot).run()
    _vanish(boot, 0)


def _die_with_parent(boot: Boot) -> None:
    # Not PR_SET_PDEATHSIG: that fires when the *thread* that started us ends. Not the owner's socket alone: a
    # process forked from the owner keeps it open.
    while os.getppid() == boot.parent_pid:
        time.sleep(_PARENT_CHECK_S)
    _vanish(boot, 1)


def _vanish(boot: Boot, code: int) -> None:
    # The owner may have been killed: then nobody else removes the folder.
    shutil.rmtree(Path(boot.socket_path).parent, ignore_errors=True)
    os._exit(code)


if __name__ == "__main__":
    main()
