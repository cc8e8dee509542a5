"""Finds machine instructions that write to a register which a Hopper's matrix instruction (``HGMMA``) may still have
to read.

Reads a kernel as ``cuobjdump -sass`` lists it. HGMMA instructions run asynchronously; ``WARPGROUP.DEPBAR.LE gsb0, N``
waits until at most N of their groups run. PTX forbids writes to a first operand's registers before that, and ptxas,
which allocates registers, has to ensure it.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass

from triton import knobs

PREDICATE = re.compile(r"^@!?U?P\w+\s+")
NO_RESULT = ("ST", "BAR", "BRA", "EXIT", "SYNCS", "UTMA", "WARPGROUP", "RED", "R2UR", "ELECT", "CCTL", "NOP", "R2P", "MEMBAR")


@dataclass(frozen=True)
class Instruction:
    address: int
    text: str

    @property
    def operation(self) -> str:
        return PREDICATE.sub("", self.text).partition(" ")[0]

    @property
    def operands(self) -> list[str]:
        return [each.strip() for each in PREDICATE.sub("", self.text).partition(" ")[2].split(",")]

    def written(self) -> set[int]:
        """General registers that are written; empty for a matrix instruction, whose sums are not checked."""
        if self.operation.startswith((*NO_RESULT, "HGMMA")):
            return set()
        first = next((each for each in self.operands[:2] if not re.match(r"U?P", each)), "")
        if not (found := re.match(r"R(\d+)", first)):
            return set()
        wide = ".128" in self.operation or ".64" in self.operation or "WIDE" in self.operation
        return set(range(int(found[1]), int(found[1]) + (4 if ".128" in self.operation else 2 if wide else 1)))

    def first_operand(self) -> set[int]:
        """Registers of a matrix instruction's first operand; empty if it is in shared memory."""
        found = re.match(r"R(\d+)", self.operands[1])
        return set(range(int(found[1]), int(found[1]) + 4)) if found else set()


def sass(cubin: bytes) -> list[Instruction]:
    """A kernel's instructions, by Triton's own ``cuobjdump``."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run([knobs.nvidia.cuobjdump.path, "-sass", file.name], check=True, capture_output=True, text=True).stdout
    return read(listing)


def read(listing: str) -> list[Instruction]:
    lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", listing, re.MULTILINE)
    return [Instruction(int(address, 16), text.strip()) for address, text in lines]


def loops(instructions: list[Instruction]) -> list[list[Instruction]]:
    """The bodies of loops that contain matrix instructions: from a branch's target to the branch after it."""
    places = {each.address: place for place, each in enumerate(instructions)}
    found = []
    for place, each in enumerate(instructions):
        target = re.search(r"0x([0-9a-f]+)", each.text) if each.operation.startswith("BRA") else None
        begin = places.get(int(target[1], 16), place) if target else place
        if begin < place and any(one.operation.startswith("HGMMA") for one in instructions[begin:place]):
            found.append(instructions[begin : place + 1])
    return found


def overwritten(instructions: list[Instruction]) -> list[str]:
    """One sentence for each write to a register of a first operand that may still be read; loops are walked twice."""
    found = []
    for body in loops(instructions):
        running: list[list[Instruction]] = [[]]  # groups, the last of which is still open
        for each in body * 2:
            if each.operation.startswith("HGMMA"):
                running[-1].append(each)
                if "gsb0" in each.text:
                    running.append([])
            elif "DEPBAR" in each.operation and (allowed := re.search(r"gsb0, 0x([0-9a-f]+)", each.text)):
                running = running[-1 - int(allowed[1], 16) :]
            else:
                found += [
                    f"{each.address:#x} {each.text} writes to an operand of {product.address:#x}"
                    for group in running
                    for product in group
                    if each.written() & product.first_operand()
                ]
    return list(dict.fromkeys(found))
