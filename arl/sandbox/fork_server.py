"""Fork programs that a model wrote, each into namespaces of its own. Runs inside bubblewrap, by the standard library.

    BubblewrapSandbox ─ one byte and open files ─► server ─┬─ watcher ─ program    user, mount, pid and ipc
           │                                               ├─ watcher ─ program    namespaces, no capabilities
           └──────────────── program, result ──────────────────┘

The server never holds a program: a watcher, which is forked for it alone, reads it from a connection of its own. So no
program finds traces of another one in its memory. A program cannot see its watcher, which is outside of its process
namespace, and dies with it. The watcher ends the program when the caller closes the connection. The network namespace
is that of bwrap, which is empty: the kernel takes down fewer a second than there are runs, and sockets are refused.
"""

import ast
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import itertools
import linecache
import marshal
import math
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn, cast

FOLDER = "/tmp"  # where a program works
DISK_BYTES = 64 << 20  # that it may write there
FILES = 4096
SLICE = 0.5  # seconds from one look at the clock to the next
COUNTED = 0.99  # of the CPU time of a process that the kernel ends at its limit
SCRIPT = "program.py"  # name of the code in tracebacks
USER = 65534  # that programs run as, where this was started by root
ID = 1000  # that it is called inside
LIMITS = {
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: 128,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: DISK_BYTES,
    resource.RLIMIT_SIGPENDING: 128,  # timers, too, which the kernel counts by user
}
GO, STOP = b"g", b"s"  # to the watcher of a shell, before and after each code: idle ones take no time
SHELL = 3  # descriptor through which a shell is given code
HEADER = 8  # bytes of a message's length
IMPORTED = (  # once, so that no program waits for it
    "bisect collections copy dataclasses datetime decimal enum fractions functools hashlib heapq io itertools json "
    "operator random re statistics string textwrap typing"
)
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_PR_SET_CHILD_SUBREAPER = 36
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_CAPABILITY_VERSION = 0x20080522

Request = dict[str, Any]  # code, command, files, seconds, memory, filter, is_shell
_libc = ctypes.CDLL(None, use_errno=True)


def serve(listener: socket.socket, is_isolated: bool) -> Callable[[], None]:
    """Fork a watcher for each message of the caller, until it is gone. Returns in programs alone: what they run."""
    listener.send(b"r")
    while True:
        message, descriptors, _, _ = socket.recv_fds(listener, 1, 8)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            listener.close()
            return _watch(descriptors, is_isolated)
        for number in descriptors:
            os.close(number)


def _watch(descriptors: list[int], is_isolated: bool) -> Callable[[], None]:
    """Start one program, wait for its end, and report it. Returns in the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control = socket.socket(fileno=descriptors[0])
    program = 0
    try:
        length = int.from_bytes(_receive(control, HEADER), "little")
        request: Request = marshal.loads(_receive(control, length))
        folder = _isolate() if is_isolated else _set_apart()
        _write_files(folder, request["files"])
        failed, fails = os.pipe()
        program = os.fork()
        if program == 0:
            control.detach()
            try:
                _confine(request, descriptors[1:], fails, is_isolated)
            except BaseException as error:
                os.write(fails, f"{type(error).__name__}: {error}".encode())
                os._exit(1)
            if request["command"]:
                _execute(request["command"])
            return _shell if request["is_shell"] else lambda: _run_script(request["code"])
        os.close(fails)
        for number in descriptors[1:]:
            os.close(number)
        failure = os.read(failed, 4096).decode("utf-8", "replace")
        report = f"!{failure}" if failure else _wait(program, control, request["seconds"])
        if not is_isolated:
            _clean(folder)
        control.sendall(report.encode())
    except BaseException as error:
        with contextlib.suppress(OSError):
            if program:
                os.kill(program, signal.SIGKILL)
        with contextlib.suppress(OSError):
            control.sendall(f"!{type(error).__name__}: {error}".encode())
    os._exit(0)


def _wait(program: int, control: socket.socket, seconds: float) -> str:
    """Wait until the program has ended, its time is over, or the caller is gone; then reap it.

    Returns:
        Exit code, whether a time limit ended it, and seconds.
    """
    begin = time.monotonic()
    poll = select.poll()
    poll.register(os.pidfd_open(program), select.POLLIN)
    poll.register(control, select.POLLIN)
    left = seconds
    while True:
        began = time.monotonic()
        events = poll.poll(min(left, SLICE) * 1000 if seconds else None)
        left -= min(time.monotonic() - began, 2 * SLICE)  # a machine that was frozen has not used up anybody's time
        if not events and left > 0:
            continue
        if [number for number, _ in events] != [control.fileno()]:
            break  # the program has ended, or its time is over
        word = control.recv(1)
        if not word:
            break
        os.kill(program, signal.SIGCONT if word == GO else signal.SIGSTOP)
    ended = time.monotonic() - begin
    os.kill(program, signal.SIGKILL)
    _, status, usage = os.wait4(program, 0)
    has_used_up = 0 < seconds * COUNTED <= usage.ru_utime + usage.ru_stime
    return f"{os.waitstatus_to_exitcode(status)} {int(not events or has_used_up)} {ended:.6f}"


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def _isolate() -> str:
    """Enter new namespaces with an empty working folder, and return its path."""
    user, group = os.getuid(), os.getgid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWIPC), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{ID} {user} 1")
    _write("/proc/self/gid_map", f"{ID} {group} 1")
    _write("/proc/self/oom_score_adj", "1000")  # if the machine runs out of memory, this is the one to kill
    _mount("/proc", _MS_RDONLY, "size=4k")  # over the one that shows other processes
    _mount(FOLDER, 0, f"size={DISK_BYTES},nr_inodes={FILES},mode=700")
    return FOLDER


def _set_apart() -> str:
    """Become the parent of orphans, make a working folder, and return its path: for `unsafe: true`."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl")
    return tempfile.mkdtemp(prefix="arl-unsafe-")


def _clean(folder: str) -> None:
    """Kill what the program has left, and remove its folder."""
    with contextlib.suppress(ChildProcessError):
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for child in map(int, file.read().split()):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)
    shutil.rmtree(folder, ignore_errors=True)


def _write_files(folder: str, files: dict[str, bytes]) -> None:
    os.chdir(folder)
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def _confine(request: Request, descriptors: list[int], fails: int, is_isolated: bool) -> None:
    """Keep the given files alone, and give up all rights, for good."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    os.setsid()  # a signal to its process group would reach the watchers of all, whatever namespaces they are in
    first = len(descriptors)
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD, 64) for number in descriptors]
    report = fcntl.fcntl(fails, fcntl.F_DUPFD, 64)
    for number, descriptor in enumerate(kept):
        os.dup2(descriptor, number)
    os.dup2(report, first, inheritable=False)
    os.closerange(first + 1, 1 << 20)
    limits = {
        **(LIMITS if is_isolated else {}),
        resource.RLIMIT_AS: request["memory"],
        resource.RLIMIT_FSIZE: DISK_BYTES,
    }
    if request["seconds"]:
        limits[resource.RLIMIT_CPU] = math.ceil(request["seconds"])
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (bound, bound))
    if is_isolated:
        _give_up_rights(request["filter"])
    os.close(first)


def _give_up_rights(instructions: bytes) -> None:
    """Drop all capabilities, and let the kernel filter system calls."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    program = Filter(len(instructions) // 8, instructions)
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "seccomp")


def _mount(path: str, flags: int, options: str) -> None:
    flags |= _MS_NOSUID | _MS_NODEV
    _check(_libc.mount(b"tmpfs", path.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode()), f"mount {path}")


def _check(result: int, call: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _execute(command: tuple[str, ...]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def _run_script(code: str) -> NoReturn:
    """Run code as Python runs a script, and exit as it does, but without the teardown that takes most of the time."""
    linecache.cache[SCRIPT] = (len(code), None, code.splitlines(keepends=True), SCRIPT)
    status = 0
    try:
        exec(compile(code, SCRIPT, "exec"), _new_main())
    except SystemExit as request:
        status = request.code if isinstance(request.code, int) else int(request.code is not None)
        if isinstance(request.code, str):
            print(request.code, file=sys.stderr)
    except BaseException as error:
        _print_error(type(error), error, error.__traceback__)
        status = 1
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__ or sys.stdout):
        with contextlib.suppress(Exception):  # the program may have closed or replaced it
            stream.flush()
    os._exit(status & 0xFF)


def _shell() -> None:
    """Run code after code from descriptor 3, each answered by one byte when all that it printed is written."""
    namespace = _new_main()
    requests = socket.socket(fileno=SHELL)
    for number in itertools.count(1):
        length = int.from_bytes(_receive(requests, HEADER), "little")
        code = _receive(requests, length).decode()
        succeeded = _run_cell(code, f"<input {number}>", namespace)
        sys.stdout.flush()
        sys.stderr.flush()
        requests.sendall(b"1" if succeeded else b"0")


def _run_cell(code: str, name: str, namespace: dict[str, Any]) -> bool:
    """Run code as a notebook does, print the value of a last expression, and say whether it raised nothing."""
    try:
        tree = cast(ast.Module, compile(code, name, "exec", ast.PyCF_ONLY_AST))
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval"), namespace))
    except SystemExit:
        raise
    except BaseException as error:
        _print_error(type(error), error, error.__traceback__)
        return False
    return True


def _new_main() -> dict[str, Any]:
    """Return the namespace of a module in place of this one."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = [SCRIPT]
    sys.path.insert(0, os.getcwd())
    sys.excepthook = _print_error
    return sys.modules["__main__"].__dict__


def _print_error(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == _print_error.__code__.co_filename:
        trace = trace.tb_next  # frames of this file
    traceback.print_exception(kind, error, trace)


def main() -> None:
    """Become an ordinary user, import what programs often need, and serve the socket that is file descriptor 0."""
    listener = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps watchers
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1] == "root":
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        _check(_libc.prctl(_PR_SET_DUMPABLE, 1), "prctl")
    sys.path += sys.argv[2:]
    for name in IMPORTED.split():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    serve(listener, is_isolated=sys.argv[1] != "plain")()


if __name__ == "__main__":
    main()
