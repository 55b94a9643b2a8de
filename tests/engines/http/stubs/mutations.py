"""Random damage and splitting of bytes. Mutations are seeded, so that a failure can be reproduced."""

import random
from itertools import pairwise


def mutate(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        size = rng.choice((1, 1, 2, 5, 40, 400))
        match rng.randrange(6):
            case 0:
                data = data[:at] + data[at + size :]
            case 1:
                data = data[:at] + data[at : at + size] * 2 + data[at + size :]
            case 2:
                data = data[:at] + rng.randbytes(size) + data[at + size :]
            case 3:
                data = data[:at] + rng.randbytes(min(size, 5)) + data[at:]
            case 4:
                data = data[:at]
            case _:
                flipped = bytes(one ^ (1 << rng.randrange(8)) for one in data[at : at + 1])
                data = data[:at] + flipped + data[at + 1 :]
    return data


def split_bytes(data: bytes, positions: list[int]) -> list[bytes]:
    """Split the data at these positions, taken modulo its length."""
    edges = [0, *sorted({position % (len(data) + 1) for position in positions}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges) if begin < end]
