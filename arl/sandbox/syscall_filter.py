"""Build the filter of system calls (seccomp) with which programs in bubblewrap run.

What is refused here is refused by namespaces and missing capabilities, too, or would let a program keep more memory
than its limit counts, or leave something behind. So a hole in one of the two is no hole.
"""

import errno
import os
import struct

from arl.errors import SandboxError

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, AUDIT_ARCH_*
# name, number on x86_64, on aarch64; -1: there is no such call. RLIMIT_AS counts neither memory of memfd and shm, nor
# attributes of the file that is a program's input
_REFUSED = """
socket 41 198 | connect 42 203 | bind 49 200 | listen 50 201 | fork 57 -1 | vfork 58 -1 | unshare 272 97
setns 308 268 | ptrace 101 117 | process_vm_readv 310 270 | process_vm_writev 311 271 | kcmp 312 272
pidfd_open 434 434 | pidfd_getfd 438 438 | pidfd_send_signal 424 424 | mount 165 40 | umount2 166 39
pivot_root 155 41 | chroot 161 51 | open_tree 428 428 | move_mount 429 429 | fsopen 430 430 | fsconfig 431 431
fsmount 432 432 | fspick 433 433 | mount_setattr 442 442 | bpf 321 280 | perf_event_open 298 241
userfaultfd 323 282 | modify_ldt 154 -1 | io_uring_setup 425 425 | io_uring_enter 426 426
io_uring_register 427 427 | add_key 248 217 | request_key 249 218 | keyctl 250 219 | memfd_create 319 279
memfd_secret 447 447 | shmget 29 194 | msgget 68 186 | semget 64 190 | mq_open 240 180 | init_module 175 105
finit_module 313 273 | delete_module 176 106 | kexec_load 246 104 | name_to_handle_at 303 264
open_by_handle_at 304 265 | fanotify_init 300 262 | quotactl 179 60 | acct 163 89 | swapon 167 224 | reboot 169 142
syslog 103 116 | setsockopt 54 208 | seccomp 317 277 | io_setup 206 0 | inotify_init 253 -1 | inotify_init1 294 26
setxattr 188 5 | lsetxattr 189 6 | fsetxattr 190 7 | sync 162 81 | syncfs 306 267 | statmount 457 457
listmount 458 458
"""
_EXECUTE = "execve 59 221 | execveat 322 281"
_CLONE = (56, 220)
_CLONE3 = 435  # its arguments are in memory, where no filter sees them: libc falls back to clone
_PRLIMIT = (302, 261)
_NEWEST = 462  # system calls after this one are not known here
_CLONE_THREAD = 0x10000
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06  # BPF operations
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data


def syscall_filter(*, may_execute: bool) -> bytes:
    """Return a BPF program: threads and files are allowed; processes, sockets and what rules the system are not.

    Args:
        may_execute: the program may replace itself by another one.

    Raises:
        SandboxError: this machine is of a kind whose calls are not known here.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        kinds = ", ".join(_MACHINES)
        raise SandboxError(f"sandbox.kind bubblewrap knows the system calls of {kinds}, and not of {machine}")
    column, architecture = _MACHINES[machine]
    table = _REFUSED if may_execute else f"{_REFUSED}|{_EXECUTE}"
    refused = [int(row.split()[1 + column]) for row in table.replace("\n", "|").split("|") if row.strip()]
    denied = _instruction(_RETURN, _ERRNO | errno.EPERM)
    unknown = _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    allowed = _instruction(_RETURN, _ALLOW)
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_ABOVE, _NEWEST, 0, 1),  # the x32 calls of x86_64 are above, too
        unknown,
        _instruction(_EQUAL, _CLONE3, 0, 1),
        unknown,
    ]
    for number in refused:
        if number >= 0:
            program += [_instruction(_EQUAL, number, 0, 1), denied]
    program += [  # a clone that is no thread
        _instruction(_EQUAL, _CLONE[column], 0, 4),
        _instruction(_LOAD, _ARGUMENT),
        _instruction(_ANY_BIT, _CLONE_THREAD, 0, 1),
        allowed,
        denied,
        _instruction(_EQUAL, _PRLIMIT[column], 0, 3),  # of another process
        _instruction(_LOAD, _ARGUMENT),
        _instruction(_EQUAL, 0, 1, 0),
        denied,
        allowed,
    ]
    return b"".join(program)


def _instruction(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)
