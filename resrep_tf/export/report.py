"""The report of an export: the file, and how far it is from the model."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ExportReport:
    """The result of `resrep_tf.export`.

    The differences are None if the file was not verified.

    Attributes:
        format: One of `resrep_tf.export`'s formats.
        path: The file or folder.
        bytes: Its size; for a folder, the size of all files in it.
        verified_on: The inputs that the file's outputs were compared on, in words.
        examples: The number of these inputs.
        difference: The largest difference between an output of the file and of the
            model, relative to the largest output of the same example.
        mean_difference: The mean of the differences, relative in the same way.
        class_agreement: The share of examples for which file and model give the same
            class. None if the outputs are not a row of classes.
    """

    format: str
    path: Path
    bytes: int
    verified_on: str | None = None
    examples: int = 0
    difference: float | None = None
    mean_difference: float | None = None
    class_agreement: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain, JSON-compatible values."""
        return {**dataclasses.asdict(self), "path": str(self.path)}

    def __str__(self):
        text = f"{self.path}: {self.format}, {self.bytes:,} bytes"
        if self.verified_on is None:
            return f"{text}, not verified"
        text += (
            f"; on {self.verified_on} outputs differ by {self.difference:.2g} at most"
            f" ({self.mean_difference:.2g} on average)"
        )
        if self.class_agreement is not None:
            text += f", the class is the same for {self.class_agreement:.1%}"
        return text
