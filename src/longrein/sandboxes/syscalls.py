"""Numbers of the system calls that a sandbox denies or looks into, on the two machines we know.

Source: Linux 6.1, ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h`` (aarch64).
"""

from __future__ import annotations

from typing import NamedTuple


class Numbers(NamedTuple):
    """One system call's numbers; -1 where the machine has none."""

    x86_64: int
    aarch64: int


SYSCALLS: dict[str, Numbers] = {
    name: Numbers(*numbers)
    for name, numbers in {
        "_sysctl": (156, -1),
        "acct": (163, 89),
        "add_key": (248, 217),
        "bpf": (321, 280),
        "chroot": (161, 51),
        "clock_settime": (227, 112),
        "clone": (56, 220),
        "clone3": (435, 435),
        "create_module": (174, -1),
        "delete_module": (176, 106),
        "fanotify_init": (300, 262),
        "finit_module": (313, 273),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fsopen": (430, 430),
        "fspick": (433, 433),
        "get_kernel_syms": (177, -1),
        "init_module": (175, 105),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        "io_uring_setup": (425, 425),
        "ioctl": (16, 29),
        "ioperm": (173, -1),
        "iopl": (172, -1),
        "kcmp": (312, 272),
        "kexec_file_load": (320, 294),
        "kexec_load": (246, 104),
        "keyctl": (250, 219),
        "lookup_dcookie": (212, 18),
        "migrate_pages": (256, 238),
        "modify_ldt": (154, -1),
        "mount": (165, 40),
        "mount_setattr": (442, 442),
        "move_mount": (429, 429),
        "move_pages": (279, 239),
        "nfsservctl": (180, 42),
        "open_by_handle_at": (304, 265),
        "open_tree": (428, 428),
        "perf_event_open": (298, 241),
        "personality": (135, 92),
        "pidfd_getfd": (438, 438),
        "pivot_root": (155, 41),
        "process_madvise": (440, 440),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "ptrace": (101, 117),
        "query_module": (178, -1),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "reboot": (169, 142),
        "request_key": (249, 218),
        "setdomainname": (171, 162),
        "sethostname": (170, 161),
        "setns": (308, 268),
        "settimeofday": (164, 170),
        "socket": (41, 198),
        "swapoff": (168, 225),
        "swapon": (167, 224),
        "sysfs": (139, -1),
        "syslog": (103, 116),
        "umount2": (166, 39),
        "unshare": (272, 97),
        "uselib": (134, -1),
        "userfaultfd": (323, 282),
        "ustat": (136, -1),
        "vhangup": (153, 58),
    }.items()
}
