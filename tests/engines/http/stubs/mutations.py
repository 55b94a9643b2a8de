"""What can happen to bytes on their way: seeded, so that what was found once is found again."""

import random
from itertools import pairwise


def mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        size = chance.choice((1, 1, 2, 5, 40, 400))
        match chance.randrange(6):
            case 0:
                data = data[:at] + data[at + size :]
            case 1:
                data = data[:at] + data[at : at + size] * 2 + data[at + size :]
            case 2:
                data = data[:at] + chance.randbytes(size) + data[at + size :]
            case 3:
                data = data[:at] + chance.randbytes(min(size, 5)) + data[at:]
            case 4:
                data = data[:at]
            case _:
                bit = bytes(one ^ (1 << chance.randrange(8)) for one in data[at : at + 1])
                data = data[:at] + bit + data[at + 1 :]
    return data


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Into pieces, at these places."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges) if begin < end]
