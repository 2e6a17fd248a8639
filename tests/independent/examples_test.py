#!/usr/bin/env python3
"""The independent device's frames against the examples of docs/wire_format.md: examples_test.py PAGE."""
import re
import struct
import sys

import device


def frames_of(page):
    """The hex dumps of the page; a line that ends in `...` stands for zeros up to the next line's offset."""
    for block in re.findall(r"```\n(0000  .*?)```", page, re.S):
        frame = bytearray()
        for line in block.strip().splitlines():
            offset, *digits = line.split()
            frame += bytes(int(offset, 16) - len(frame))
            frame += bytes(int(d, 16) for d in digits if d != "...")
        if len(frame) < device.HEADER:
            frame += bytes(device.HEADER - len(frame))
        yield bytes(frame)


def main():
    ping, task = frames_of(open(sys.argv[1], encoding="utf-8").read())
    own = device.make_frame(device.PING, fill=lambda h: struct.pack_into("<I", h, 120, 5))
    if own != ping:
        sys.exit("a ping differs from the page's example")
    if struct.unpack_from("<Q", task, 16)[0] != device.checksum(task):
        sys.exit("the checksum of the page's task differs")
    read = device.Task(task)
    if (read.m, read.n, read.k, read.tasklet, read.device, read.operation) != (2, 1, 3, 7, 3, 12):
        sys.exit("the task of the page is read as another")
    product = device.multiply(read, [read.column_of_b(0)])
    if product != [-2.0, -2.0]:
        sys.exit(f"[1 2 3; 4 5 6] [1 0 -1]' is {product}")
    print("both examples")


main()
