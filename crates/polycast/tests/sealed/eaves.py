"""Keeps every frame that crosses a switch: `eaves.py FILE`, until it is ended. Says `stands` when it has begun."""

import socket
import sys

EVERYTHING = 3
SO_RCVBUFFORCE = 33


def main():
    """Takes frames as they come."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    # Root may have more than others: nothing is to be missed while others have the processor.
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    print("stands", flush=True)
    with open(sys.argv[1], "wb", buffering=0) as kept:
        while True:
            kept.write(sock.recv(1 << 17))


main()
