"""One rank of a lab: what a single TCP stream carries from rank 1 to rank 0.

By iperf3 where it is installed, else by a plain socket. Rank 1 prints one JSON object; the other
ranks have nothing to do. The first second is left out: a shaped link starts with a burst.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time

PORT = 5201
SECONDS = 4
BLOCK = 1 << 20


def main() -> None:
    """Take this rank's part."""
    rank, address = os.environ["RANK"], os.environ["MASTER_ADDR"]
    by_iperf = shutil.which("iperf3") is not None
    if rank == "0":
        if by_iperf:
            subprocess.run(
                ["iperf3", "-s", "-1", "-p", str(PORT)], check=True, stdout=subprocess.DEVNULL
            )
        else:
            receive()
    elif rank == "1":
        rate = send_by_iperf(address) if by_iperf else send(address)
        means = "iperf3" if by_iperf else "one TCP socket"
        print(json.dumps({"bits_per_second": rate, "means": means}), flush=True)


def send_by_iperf(address: str) -> float:
    """Bits per second that iperf3 says arrived."""
    command = ["iperf3", "-c", address, "-p", str(PORT), "-O", "1", "-t", str(SECONDS), "-J"]
    for _ in range(50):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"])
        time.sleep(0.1)
    raise SystemExit(f"iperf3: {done.stdout or done.stderr}")


def receive() -> None:
    """Receive until the sender has ended, then tell it what arrived after the first second."""
    with socket.create_server(("", PORT)) as server:
        connection, _ = server.accept()
        with connection:
            start = time.monotonic()
            block, counted, last = bytearray(BLOCK), 0, start
            while length := connection.recv_into(block):
                last = time.monotonic()
                counted += length if last - start > 1 else 0
            connection.sendall(f"{counted * 8 / (last - start - 1)}\n".encode())


def send(address: str) -> float:
    """Bits per second that the receiver says arrived."""
    connection = connect(address)
    with connection:
        block = bytes(BLOCK)
        end = time.monotonic() + 1 + SECONDS
        while time.monotonic() < end:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answer:
            return float(answer.readline())


def connect(address: str) -> socket.socket:
    """Connect as soon as the receiver listens."""
    for _ in range(50):
        try:
            return socket.create_connection((address, PORT))
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nobody listens on {address}:{PORT}")


if __name__ == "__main__":
    main()
