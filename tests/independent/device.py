#!/usr/bin/env python3
"""A device rank written from docs/wire_format.md and docs/numerics.md, and from nothing else.

device.py FD VERSION: speaks over the socket FD, on which every frame has its length before it (u64), says hello as a
program of VERSION, and multiplies until it is told goodbye. It knows whole matrix products in fp32 with one K block,
and columns of B that stay; whatever else it is asked ends it, so that a test notices.

Checksums come from the system's libxxhash; a fused multiply-add is the C library's fmaf.
"""
import ctypes
import ctypes.util
import math
import os
import socket
import struct
import sys
import time

HEADER = 128
MAGIC, WIRE_VERSION = b"CLMF", 9
HELLO, WELCOME, READY, REFUSAL, TASK, RESULT, REFUSED, PING, PONG, GOODBYE, FAREWELL, RELEASE = range(1, 13)
GEMM = 1
FP32 = 0
ALONG, BRING, KEPT = range(3)

xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
fmaf = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6").fmaf
fmaf.restype = ctypes.c_float
fmaf.argtypes = [ctypes.c_float] * 3


def xxh3(data, seed=0):
    return xxhash.XXH3_64bits_withSeed(bytes(data), len(data), seed)


def checksum(frame):
    header = bytes(frame[:16]) + bytes(8) + bytes(frame[24:HEADER])
    return xxh3(frame[HEADER:], xxh3(header))


def make_frame(kind, payload=b"", tasklet=-1, device=-1, operation=-1, fill=None):
    header = bytearray(HEADER)
    struct.pack_into("<4sHBBI", header, 0, MAGIC, WIRE_VERSION, kind, 0, len(payload))
    struct.pack_into("<qqi", header, 24, tasklet, device, operation)
    if fill:
        fill(header)
    frame = header + payload
    struct.pack_into("<Q", frame, 16, checksum(frame))
    return bytes(frame)


def text(string):
    data = string.encode()
    return struct.pack("<I", len(data)) + data


def aligned(offset):
    return (offset + 63) // 64 * 64


class Task:
    """The fields of a task's header, and its arrays."""

    def __init__(self, frame):
        get = lambda form, at: struct.unpack_from("<" + form, frame, at)[0]
        self.storage, self.columns = frame[13], frame[15]
        self.tasklet, self.device, self.operation = get("q", 24), get("q", 32), get("i", 40)
        self.work, self.wire, self.output = frame[44], frame[45], frame[46]
        self.m, self.n, self.k = get("q", 48), get("q", 56), get("q", 64)
        self.blocks, self.first_block = get("I", 72), get("I", 76)
        self.seq = get("i", 116)
        self.panel_of = frame[112]
        self.brought_by = get("q", 104)
        if (self.work, self.wire, self.blocks, self.panel_of, self.storage & 4) != (GEMM, FP32, 1, 0, 0):
            raise ValueError(f"a task that this device does not know: work {self.work}, wire {self.wire}, "
                             f"{self.blocks} K blocks, panel of {self.panel_of}, storage {self.storage}")
        at = HEADER
        self.a = self.b = None
        if self.columns != BRING:
            self.a = self.array(frame, at, self.m * self.k)
            at = aligned(at + 4 * self.m * self.k)
        if self.columns != KEPT:
            self.b = self.array(frame, at, self.k * self.n)
            at += 4 * self.k * self.n
        elif self.a is not None:
            at = HEADER + 4 * self.m * self.k
        if at != len(frame):
            raise ValueError(f"a task of {len(frame)} bytes whose arrays end at {at}")

    @staticmethod
    def array(frame, at, count):
        return struct.unpack_from(f"<{count}f", frame, at)

    def row_of_a(self, i):
        return self.a[i::self.m] if self.storage & 1 else self.a[i * self.k:(i + 1) * self.k]

    def column_of_b(self, j):
        return self.b[j * self.k:(j + 1) * self.k] if self.storage & 2 else self.b[j::self.n]


def chain(row, column):
    """A chain of fused multiply-adds in the order of depth."""
    total = 0.0
    for a, b in zip(row, column):
        total = fmaf(a, b, total)
    return total


def multiply(task, columns):
    """C[i,j]; of a weight gradient each sequence's product is rounded to units of 2^-50, and those are added."""
    c = []
    for i in range(task.m):
        row = task.row_of_a(i)
        for column in columns:
            if not task.seq:
                c.append(chain(row, column))
                continue
            parts = [chain(row[t:t + task.seq], column[t:t + task.seq]) for t in range(0, task.k, task.seq)]
            c.append(sum(round(part * 2.0**50) for part in parts) * 2.0**-50)
    return c


class Device:
    def __init__(self, descriptor, version):
        self.socket = socket.socket(fileno=descriptor)
        self.kept = {}
        self.computed = 0
        host = socket.gethostname()
        self.send(make_frame(HELLO, struct.pack("<q", os.getpid()) + text(host) + text(version)))

    def send(self, frame):
        self.socket.sendall(struct.pack("<Q", len(frame)) + frame)

    def receive(self):
        def exactly(count):
            data = b""
            while len(data) < count:
                part = self.socket.recv(count - len(data))
                if not part:
                    sys.exit("the server is gone")
                data += part
            return data
        return exactly(struct.unpack("<Q", exactly(8))[0])

    def run(self):
        while True:
            frame = self.receive()
            arrival = time.monotonic()
            if frame[:4] != MAGIC or struct.unpack_from("<H", frame, 4)[0] != WIRE_VERSION:
                raise ValueError("no frame of this version")
            if struct.unpack_from("<Q", frame, 16)[0] != checksum(frame):
                raise ValueError(f"kind {frame[6]}: the checksum differs")
            if len(frame) != HEADER + struct.unpack_from("<I", frame, 8)[0]:
                raise ValueError("the frame is not as long as it says")
            kind = frame[6]
            if kind == WELCOME:
                self.send(make_frame(READY))
            elif kind == PING:
                number = struct.unpack_from("<I", frame, 120)[0]
                self.send(make_frame(PONG, fill=lambda h: struct.pack_into("<I", h, 120, number)))
            elif kind == RELEASE:
                self.kept.pop(struct.unpack_from("<q", frame, 24)[0], None)
            elif kind == TASK:
                self.work_on(Task(frame), arrival)
            elif kind == GOODBYE:
                self.send(make_frame(FAREWELL))
                return
            elif kind == REFUSAL:
                sys.exit("refused: " + frame[HEADER:].decode())

    def work_on(self, task, arrival):
        if task.columns == BRING:
            self.kept[task.tasklet] = [task.column_of_b(j) for j in range(task.n)]
            return
        if task.columns == KEPT:
            columns = self.kept[task.brought_by]
        else:
            columns = [task.column_of_b(j) for j in range(task.n)]
        begun = time.monotonic()
        c = multiply(task, columns)
        if not all(math.isfinite(x) for x in c):
            raise ValueError("a result that is not finite")
        now = time.monotonic()

        def fill(header):
            header[44], header[45], header[46] = GEMM, task.wire, task.output
            struct.pack_into("<qqqII", header, 48, task.m, task.n, task.k, task.blocks, task.first_block)
            struct.pack_into("<dd", header, 80, now - arrival, now - begun)
            struct.pack_into("<i", header, 116, task.seq)

        payload = struct.pack(f"<{len(c)}f", *c)
        self.send(make_frame(RESULT, payload, task.tasklet, task.device, task.operation, fill))
        self.computed += 1


if __name__ == "__main__":
    device = Device(int(sys.argv[1]), sys.argv[2])
    device.run()
    print(f"independent device: {device.computed} blocks", file=sys.stderr)
    sys.exit(0 if device.computed > 0 else 1)
