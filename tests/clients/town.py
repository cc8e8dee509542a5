"""The schema of asked.SCHEMA as a Python client's user writes it; for environments that hold pydantic."""

from typing import Literal

from pydantic import BaseModel


class Town(BaseModel):
    """A town."""

    name: Literal["Belm", "Corin"]
    large: bool
    gates: Literal[1, 2, 3]
