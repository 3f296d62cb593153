"""A process that has imported SGLang, and forks where others would start an interpreter.

The imports are nearly all that the start of a server takes, and each of its processes does them
anew: 35 of 40 s of CPU time. ``python -m tests.forking.process FD`` imports once and then answers
requests on the socket FD. For each it forks a child that runs the command asked for, with its
own environment, directory and files, in a state in which nothing but the imports has happened. Of
this package, hooks are imported and what they need of SGLang is read, too; nothing is changed.

The child in turn has a *fork server* of its own, forked before it runs anything: what it starts
by `multiprocessing` (always "spawn" in SGLang) is forked there, and so is pristine too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import psutil
from setproctitle import getproctitle, setproctitle

from sglang_prefill_ext.patching import guard
from sglang_prefill_ext.patching.table import PATCHES, USES

MODULES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.tokenizer_manager",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.data_parallel_controller",
    "sglang.srt.models.registry",  # of all models: a scheduler imports them to find its own
)
NAME = "fork-server"
"""Under which these processes stand in a list of processes."""

_MOST_BYTES = 1 << 20
_MOST_FILES = 64
_FREE_FD = 512  # above whatever a command's own files are numbered
_LOW_FILES = 128  # numbers that a command's own files may have
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_POLL_S = 0.001
_one_at_a_time = threading.Lock()


def ask(
    channel: socket.socket,
    command: Sequence[str],
    files: Mapping[int, int],
    *,
    env: Mapping[str, str],
    cwd: str,
    new_session: bool = False,
) -> int:
    """Have a fork server run a command; return the id of the process, a child of the caller.

    Args:
        channel: the caller's end of the socket; the fork server is a descendant of the caller.
        command: ``python [-P] -m MODULE ARGS`` or ``python -c CODE ARGS``. It runs on the cores of
            the calling thread, and ignores SIGQUIT if that does, as if that had started it.
        files: by the number that a file shall have in the child, its number here.

    Raises:
        OSError: the fork server has ended.
    """
    request = {"command": list(command), "files": list(files), "env": dict(env), "cwd": cwd}
    request |= {"new_session": new_session, "cores": list(os.sched_getaffinity(0))}
    request |= {"ignores_quit": signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN}
    message = json.dumps(request).encode()
    with _one_at_a_time, adopting():
        socket.send_fds(channel, [message], list(files.values()))
        answer = channel.recv(64)
    if not answer:
        raise ConnectionResetError("the fork server has ended")
    return int(answer)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Adopt descendants that lose their parent while the body runs; the body expects one of them.

    Others come along where a server ends at the same time, alive or dead. They are known by their
    process group, which is that of the server, and waited for here: nobody else would.
    """
    known = _children()
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _set_process_option(_PR_SET_CHILD_SUBREAPER, 0)
        for pid in _children() - known:
            with contextlib.suppress(ProcessLookupError):  # ended, and its own parent has waited
                if os.getpgid(pid) not in (pid, os.getpgrp()):
                    threading.Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def serve(channel: socket.socket) -> NoReturn:
    """Answer requests until the other end is closed. Each forked child runs one, and exits."""
    setproctitle(NAME)
    while True:
        message, files, _, _ = socket.recv_fds(channel, _MOST_BYTES, _MOST_FILES)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if (pid := _fork_orphan()) == 0:
            channel.close()
            _run(request, files)
        for file in files:
            os.close(file)
        channel.send(str(pid).encode())


def _fork_orphan() -> int:
    """Fork a child for the closest ancestor that adopts orphans; its id, or 0 in the child."""
    reader, writer = os.pipe()
    if (parent := os.fork()) == 0:
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            os.close(reader)
            os.close(writer)
            while os.getppid() == parent:
                time.sleep(_POLL_S)
            return 0
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(parent, 0)
    pid = int(os.read(reader, 64))
    os.close(reader)
    return pid


def _run(request: dict[str, Any], files: Sequence[int]) -> NoReturn:
    """Run a command in this process, as the interpreter would."""
    if request["new_session"]:
        os.setsid()
    os.sched_setaffinity(0, request["cores"])
    signal.signal(signal.SIGQUIT, signal.SIG_IGN if request["ignores_quit"] else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    _look_in(os.environ.get("PYTHONPATH", ""))
    os.chdir(request["cwd"])
    _number(dict(zip(request["files"], files, strict=True)))
    _give_fork_server()
    options = request["command"][1:]
    setproctitle(" ".join(request["command"]))
    _set_process_option(_PR_SET_NAME, b"python")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    while (option := options.pop(0)) not in ("-m", "-c"):
        assert option.startswith("-"), option
    what, *sys.argv[1:] = options
    sys.argv[0] = option
    if option == "-m":
        runpy._run_module_as_main(what)  # type: ignore[attr-defined]
    else:
        exec(what, vars(main))
    sys.exit(0)


def _look_in(python_path: str) -> None:
    """Let imports look in the folders of a ``PYTHONPATH`` that this process does not know yet."""
    folders = python_path.split(os.pathsep)
    sys.path[1:1] = [each for each in folders if each and each not in sys.path]


def _number(files: dict[int, int]) -> None:
    """Give open files the requested file descriptor numbers."""
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, _FREE_FD) for number, file in files.items()}
    for file in files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)


def _give_fork_server() -> None:
    """Fork this process's own fork server, and let `multiprocessing` use it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        ours.close()
        serve(theirs)
    theirs.close()
    _hide(pid)
    owner, start = os.getpid(), multiprocessing.util.spawnv_passfds

    def spawnv_passfds(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        if "--multiprocessing-fork" in args and os.getpid() == owner:
            files = {file: file for file in (0, 1, 2, *passfds)}
            command = [os.fsdecode(arg) for arg in args]
            return ask(ours, command, files, env=os.environ, cwd=os.getcwd())
        return start(path, args, passfds)

    multiprocessing.util.spawnv_passfds = spawnv_passfds


def _hide(pid: int) -> None:
    """Hide a child from `psutil` in this process: SGLang's engine ends all that it finds."""
    found = psutil.Process.children

    def children(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        return [child for child in found(process, recursive) if child.pid != pid]

    psutil.Process.children = children


def _set_process_option(option: int, value: int | bytes) -> None:
    """Call ``prctl`` to set an option of this process."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _import() -> None:
    """Import modules; files that they open get high numbers, which no command needs."""
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(_LOW_FILES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in MODULES:
            importlib.import_module(module)
        guard.check_all(PATCHES, USES)
    if os.environ.get("TRITON_INTERPRET") == "1":
        importlib.import_module("tests.interpreting").install()
    for file in held:
        os.close(file)


def main() -> NoReturn:
    channel = socket.socket(fileno=int(sys.argv[1]))
    getproctitle()  # locates the process title by the environment, which a child changes
    _import()
    gc.collect()
    gc.freeze()  # else the first collection in each child would copy all pages
    serve(channel)


if __name__ == "__main__":
    main()
