"""Sends packets that are no source's for every transfer that it hears of: `forge.py OWN_ADDRESS PACKETS_A_SECOND SOURCE`, until
it is ended. Says `stands` when it has begun, and `forges` when it has sent some."""

import os
import random
import socket
import struct
import sys
import time

EVERYTHING = 3
VERSION = 3
SEALED = 16


def heard(sock):
    """Handle, group, port and length of payload of a packet of a data channel; `None` where it is none."""
    frame = sock.recv(1 << 17)
    if frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[30] != 239:
        return None
    data = frame[42:]
    if len(data) < 40 or data[0] != VERSION or data[1] != 1:
        return None
    handle, = struct.unpack_from(">Q", data, 8)
    return handle, socket.inet_ntoa(frame[30:34]), struct.unpack_from(">H", frame, 36)[0], data[2] & SEALED


def main():
    """Hears one packet, and forges from then on."""
    own, rate = sys.argv[1], float(sys.argv[2])
    ears = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    print("stands", flush=True)
    known = None
    while known is None:
        known = heard(ears)
    ears.close()
    handle, group, port, sealed = known
    # As if the source had sent them: receivers take no others.
    source = socket.inet_aton(sys.argv[3])
    mouth = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
    mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    sent, begun = 0, time.monotonic()
    while True:
        extension = os.urandom(24) if sealed else b""
        header = struct.pack(">BBBBIQQ", VERSION, 1, sealed, 24 + len(extension), 0, handle, random.randrange(2, 300))
        payload = header + extension + os.urandom(1_416)
        udp = struct.pack(">HHHH", 40_000, port, 8 + len(payload), 0) + payload
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 1, 17, 0, source, socket.inet_aton(group))
        mouth.sendto(head + udp, (group, 0))
        sent += 1
        if sent == 100:
            print("forges", flush=True)
        ahead = begun + sent / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


main()
