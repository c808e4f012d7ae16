"""Keeps every frame that crosses a switch: `eaves.py FILE`, until it is ended. Says `stands` when it has begun."""

import socket
import sys

EVERYTHING = 3


def main():
    """Takes frames as they come."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 20)
    print("stands", flush=True)
    with open(sys.argv[1], "wb", buffering=0) as kept:
        while True:
            kept.write(sock.recv(1 << 17))


main()
