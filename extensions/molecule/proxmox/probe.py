"""Print as JSON what each NVIDIA node of this container is, and what opening it says; run by ansible.builtin.script."""

import errno
import glob
import json
import os
import stat


def opened(path):
    """How the kernel answers: ENXIO is "allowed, but no driver", EPERM is "not allowed"."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "opened"


def node(path):
    found = os.stat(path)
    return {
        "character": stat.S_ISCHR(found.st_mode),
        "mode": oct(found.st_mode & 0o777),
        "owner": [found.st_uid, found.st_gid],
        "number": [os.major(found.st_rdev), os.minor(found.st_rdev)],
        "opened": opened(path),
    }


def made(minor):
    """What opening a node of our own says, of a GPU that was not passed through."""
    path = f"/root/nvidia{minor}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, minor))
    except OSError as error:
        return f"mknod {errno.errorcode[error.errno]}"
    try:
        return opened(path)
    finally:
        os.unlink(path)


print(
    json.dumps(
        {
            "nodes": {path: node(path) for path in sorted(glob.glob("/dev/nvidia*"))},
            "own": made(1),
            "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
            "mounts": [path for path in ("/srv/shared", "/srv/data") if os.path.ismount(path)],
        }
    )
)
