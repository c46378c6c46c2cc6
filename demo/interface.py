"""What the demo asks of the network interfaces of the host it runs on."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

SIOCGIFADDR = 0x8915  # linux/sockios.h: the interface's IPv4 address


def interface_towards(host: str) -> str:
    """Return the name of the interface whose address this machine uses to reach `host`.

    Raises
    ------
    OSError
        `host` has no IPv4 address, there is no route to it, or no interface bears the address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # a datagram socket sends nothing on connect
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address(probe, name) == own:
                return name
    raise OSError(f"no interface bears {own}, the address this host reaches {host} from")


def sent_bytes() -> int:
    """Return the bytes this network namespace has sent so far, loopback left out."""
    return _sent_bytes(Path("/proc/self/net/dev").read_text(encoding="ascii"))


def _sent_bytes(table: str) -> int:
    # Two heading lines, then "name: <8 receive counters> <8 transmit counters>", bytes first.
    rows = (line.split(":", 1) for line in table.splitlines()[2:])
    return sum(int(counters.split()[8]) for name, counters in rows if name.strip() != "lo")


def _address(probe: socket.socket, interface: str) -> str | None:
    request = struct.pack("256s", interface.encode())
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
    except OSError:
        return None  # an interface without an IPv4 address
    return socket.inet_ntoa(answer[20:24])
