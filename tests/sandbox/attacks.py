"""List programs that attack the sandbox. One that gets through prints BROKEN; each has an outcome in which it ends."""

from typing import Any

from arl.sandbox.base import Outcome, Program

_REFUSED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)

def refused(name, function, *arguments):
    try:
        result = function(*arguments)
    except (OSError, ValueError, RuntimeError, ImportError):
        return
    print("BROKEN", name, result)

def calls_refused(**numbers):
    for name, arguments in numbers.items():
        if libc.syscall(*arguments) != -1:
            print("BROKEN", name)
"""

_NETWORK = """
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
    refused("socket", socket.socket, family)
refused("resolver", socket.getaddrinfo, "localhost", 80)
ours, theirs = socket.socketpair()
refused("bind", ours.bind, "\\0name")
refused("filter", ours.setsockopt, socket.SOL_SOCKET, 26, bytes(16))
calls_refused(socket=(41, 2, 1, 0), io_uring_setup=(425, 8, ctypes.create_string_buffer(256)))
"""

_READING = """
for path in ("/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/self/maps", "/proc/self/mem", "/sys", SECRET):
    refused(path, open, path)
print("BROKEN" if os.listdir("/proc") or "SECRET" in os.environ else "")
for number in range(3, 1000):
    refused("descriptor", os.fstat, number)
"""

_PROCESSES = """
refused("fork", os.fork)
refused("exec", os.execv, "/bin/true", ["true"])
refused("spawn", os.posix_spawn, "/bin/true", ["true"], {})
calls_refused(fork=(57,), vfork=(58,), clone=(56, 17, 0, 0, 0, 0), clone3=(435, ctypes.create_string_buffer(88), 88))
"""

_THREADS = """
import threading, time
threading.stack_size(1 << 15)
count = 0
try:
    while count < 1000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
except RuntimeError:
    pass
print("BROKEN" if count > 200 else "")
sys.stdout.flush()
os._exit(0)
"""

_MEMORY = """
import mmap
calls_refused(memfd_create=(319, b"name", 0), shmget=(29, 0, 1 << 20, 0o1600), msgget=(68, 0, 0o1600))
refused("attributes of its input", os.setxattr, 0, "user.name", b"x" * 60000)
calls_refused(io_setup=(206, 1, ctypes.byref(ctypes.c_long())), inotify=(294, 0))
refused("mmap", mmap.mmap, -1, 1 << 30)
kept = []
while True:
    kept.append(bytearray(1 << 20))
"""

_DISK = """
def fill():
    with open("large", "wb") as file:
        while True:
            file.write(bytes(1 << 20))

def litter():
    for number in range(100_000):
        open(str(number), "w").close()

refused("fill", fill)
os.remove("large")
refused("several", lambda: [open(str(n), "wb").write(bytes(40 << 20)) for n in range(9)])
refused("litter", litter)
"""

_WRITING = """
for folder in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/dev/shm", "/proc", "/var/tmp", "/run", "/home", sys.prefix):
    refused(folder, open, folder + "/arl", "w")
    refused(folder, os.mkdir, folder + "/arl2")
refused("node", os.mknod, "/tmp/null", 0o20666, os.makedev(1, 3))
refused("mode", os.chmod, "/usr", 0o777)
"""

_KILLING = """
import signal
for process in (0, -1, *range(2, 3000)):  # 0: all of its process group, in whatever namespace
    try:
        os.kill(process, signal.SIGKILL)
        print("" if process in (0, -1) else "BROKEN")
    except OSError:
        pass
calls_refused(pidfd_open=(434, 1, 0))
"""

_RIGHTS = """
import resource
null = ctypes.c_void_p()
calls_refused(unshare=(272, 0x10000000), setns=(308, 0, 0), chroot=(161, b"/tmp"), bpf=(321, 0, null, 0))
calls_refused(mount=(165, b"none", b"/tmp", b"tmpfs", 0, null), umount=(166, b"/proc", 2), setuid=(105, 0))
calls_refused(ptrace=(101, 0, 0, 0, 0), process_vm_readv=(310, 1, null, 0, null, 0, 0), keyctl=(250, 0, -3, 1))
calls_refused(statmount=(457, null, null, 0, 0))
calls_refused(perf=(298, null, 0, -1, -1, 0), userfaultfd=(323, 0), open_tree=(428, -100, b"/", 1))
refused("limit", resource.setrlimit, resource.RLIMIT_AS, (-1, -1))
refused("limit of another", resource.prlimit, 2, resource.RLIMIT_CPU, (1, 1))
"""

SCANNER = """
import gc, re

def readable(address):  # the kernel says EFAULT where nothing is mapped
    return libc.write(pipe, ctypes.c_void_p(address), 1) == 1 and os.read(reader, 1) is not None

reader, pipe = os.pipe()
libc.write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
libc.sbrk.restype = ctypes.c_void_p
found = set()
around = [libc.sbrk(0) - 4096, *(id(each) & ~4095 for each in gc.get_objects()[::500])]
for start in set(around):
    for step in (-4096, 4096):
        address = start
        for _ in range(400):
            if not readable(address):
                break
            found.update(re.findall(rb"hidden[0-9]{16}", ctypes.string_at(address, 4096)))
            address += step
frame = sys._getframe()
while frame is not None:
    found.update(re.findall(rb"hidden[0-9]{16}", repr({**frame.f_globals, **frame.f_locals}).encode()))
    frame = frame.f_back
print("BROKEN" if found else "", sorted(found))
"""

_PATCHED = """
import builtins, json, linecache
for module in (builtins, json, os, sys):
    for name in list(vars(module)):
        if not name.startswith("_") and name not in ("stdout", "stderr"):
            setattr(module, name, None)
"""

_NESTED = """
sys.setrecursionlimit(10 ** 9)
nested = []
for _ in range(10 ** 5 * 2):
    nested = [nested]
repr(nested)
"""

_STUBBORN = """
import signal, threading
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(3):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
while True:
    pass
"""

Attack = tuple[str, Outcome, dict[str, Any]]

ATTACKS: dict[str, Attack] = {
    "uses the network": (_NETWORK, "done", {}),
    "reads files and the memory of processes": (_READING, "done", {}),
    "starts processes": (_PROCESSES, "done", {}),
    "starts threads without end": (_THREADS, "done", {}),
    "takes memory without end": (_MEMORY, "memory", {"memory_mb": 128}),
    "fills the disk": (_DISK, "done", {"memory_mb": 256}),
    "loops at import": ("import forever", "time", {"files": {"forever.py": b"while True: pass"}, "seconds": 0.5}),
    "loops in every thread and ignores signals": (_STUBBORN, "time", {"seconds": 0.5}),
    "loops in one instruction": ("10 ** 10 ** 8", "time", {"seconds": 0.5}),
    "sleeps": ("import time; time.sleep(60)", "time", {"seconds": 0.5}),
    "writes outside of its folder": (_WRITING, "done", {}),
    "kills its parents": (_KILLING, "done", {}),
    "writes without end": ("while True: print('x' * 100_000)", "output", {}),
    "complains without end": ("while True: print('x' * 100_000, file=sys.stderr)", "output", {}),
    "exits at once": ("sys.exit()", "done", {}),
    "exits without a trace": ("os._exit(7)", "error", {}),
    "crashes": ("ctypes.string_at(0)", "error", {}),
    "overflows its stack": (_NESTED, "error", {}),
    "closes all descriptors": ("os.closerange(0, 100)", "done", {}),
    "asks for more rights": (_RIGHTS, "done", {}),
    "looks for other programs in its memory": (SCANNER, "done", {"memory_mb": 1024}),
    "patches the interpreter": (_PATCHED, "error", {}),
}


def attack(name: str, secret: str) -> tuple[Program, Outcome]:
    """Return the program of an attack, which looks for a file `secret`, and how it is to end."""
    code, outcome, limits = ATTACKS[name]
    return Program(code=f"SECRET = {secret!r}\n{_REFUSED}{code}", **limits), outcome
