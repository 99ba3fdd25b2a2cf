"""The weights that new engines read: the model's own, or the version that was kept (given)."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from nanovllm.resilience.checksums import changed, checksums
from nanovllm.resilience.errors import ResilienceError, WeightsChangedError

WEIGHTS = "*.safetensors"
log = logging.getLogger("nanovllm.resilience")


class Weights:
    """`folder` holds what the first engine has read, or a copy of it does.

    keep: a folder that gets the copy, made where there is none; None: no copy is kept. It is
    checked when it is needed, too: what damages one disk may have damaged the other.

    Raises ResilienceError where `keep` holds anything but a copy, or a part of one, is the model's
    own folder, or cannot be written.
    """

    def __init__(self, folder: Path, keep: Path | None = None) -> None:
        self.folder, self.keep = folder, keep
        self._sums = checksums(folder.glob(WEIGHTS))
        if keep is not None:
            self._copy(keep)

    def _copy(self, keep: Path) -> None:
        if keep.exists() and keep.samefile(self.folder):
            raise ResilienceError(f"{keep} is the model's own folder; give another one for a copy.")
        files = [path for path in self.folder.iterdir() if path.is_file()]
        sums = self._sums | checksums(path for path in files if path.name not in self._sums)
        there = {path.name for path in keep.glob("*")}
        others = {name.removesuffix(".part") for name in there} - set(sums)
        if others or changed({name: sums[name] for name in sums if name in there}, keep):
            raise ResilienceError(
                f"{keep} holds other files than a copy of these weights; give an empty folder."
            )
        try:
            keep.mkdir(parents=True, exist_ok=True)
            for path in files:
                if path.name not in there:
                    part = keep / (path.name + ".part")
                    shutil.copyfile(path, part)
                    part.replace(keep / path.name)
        except OSError as error:
            raise ResilienceError(
                f"The weights cannot be kept in {keep} ({error.strerror}); give a folder with room."
            ) from None

    def readable(self) -> Path:
        """The folder to read from now. Raises WeightsChangedError."""
        other = changed(self._sums, self.folder)
        if not other:
            return self.folder
        if self.keep is not None and not changed(self._sums, self.keep):
            fields = {"changed": other, "read_from": str(self.keep)}
            log.error("weights changed; the kept ones are read", extra={"fields": fields})
            return self.keep
        where = self.folder if self.keep is None else f"{self.folder}, and in {self.keep},"
        raise WeightsChangedError(
            f"{', '.join(other)} in {where} changed while the server ran; put the old weights "
            "back, or start the server anew."
        )
