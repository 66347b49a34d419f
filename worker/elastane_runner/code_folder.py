"""The code of a launch: an archive by its digest, a commit of a git repository, or installed code.

    FOLDER/code/SHA256.zip      archives that were downloaded and have this digest, the least used removed

Every launch unpacks its code into a separate folder, so that files written beside a script are not seen by
other runs. All functions block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from elastane_common import layout
from elastane_common.code_archive import digest_of
from elastane_common.errors import ElastaneError
from elastane_common.storage import CHUNK_BYTES, Folder
from elastane_runner.archive import ArchiveLimits, unpack
from elastane_runner.progress import Tell, untold

#: Total size of the cached archives.
CACHE_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024
GIT_SECONDS_MAX: Final = 600.0
#: Between two looks at what takes long.
LOOK_SECONDS: Final = 1.0
_GIT_PROTOCOLS: Final = "https:http:ssh:git:file"
_COMMIT_DIGITS: Final = 40


class CodeError(ElastaneError):
    """The code of a run cannot be fetched. is_permanent: it would fail on any runner, at any time."""

    code = "ELA455"

    def __init__(self, message: str, *, hint: str = "", is_permanent: bool = False, **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.is_permanent = is_permanent


class CodeCache:
    """Archives of one runner. bytes_max: of all together, beside the one in use. Thread-safe."""

    def __init__(self, folder: Path, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._folder = folder / "code"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for unfinished in self._folder.glob(".*"):
            unfinished.unlink()
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._downloaded_bytes = 0

    def unpack(
        self, service_url: str, digest: str, target: Path, limits: ArchiveLimits, tell: Tell = untold
    ) -> None:
        """Unpack an archive of the service into the new folder `target`.

        tell: called with its progress. Raises ArchiveError, CodeError or OSError.
        """
        with self._turn(tell):
            archive = self._folder / f"{digest}.zip"
            if not archive.exists():
                self._download(service_url, digest, archive, tell)
            os.utime(archive)
            unpack(archive, digest, target, limits)
            self._make_room(archive)

    @contextlib.contextmanager
    def _turn(self, tell: Tell) -> Iterator[None]:
        """Lock the cache: one download at a time, since two launches of one archive share it."""
        seen_bytes = self._downloaded_bytes
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            if self._downloaded_bytes != seen_bytes:
                seen_bytes = self._downloaded_bytes
                tell("waits for another download of code")
        try:
            yield
        finally:
            self._lock.release()

    def _download(self, service_url: str, digest: str, archive: Path, tell: Tell) -> None:
        name = layout.code_archive(digest)
        folder = Folder(service_url, CodeError)
        if folder.size(name) is None:
            raise CodeError(
                f"there is no archive {digest} at {service_url}",
                hint="upload it before the run is submitted",
                is_permanent=True,
            )
        unfinished = archive.with_name(f".{uuid.uuid4().hex}")
        try:
            with folder.reading(name) as source, unfinished.open("wb") as copy:
                while chunk := source.read(CHUNK_BYTES):
                    copy.write(chunk)
                    self._downloaded_bytes += len(chunk)
                    tell(f"downloads the code: {copy.tell() >> 20} MiB are there")
            if digest_of(unfinished) != digest:
                raise CodeError(
                    f"the archive at {service_url}/{name} has another sha256",
                    hint="it was changed or truncated; upload it again",
                    is_permanent=True,
                )
            unfinished.replace(archive)
        finally:
            unfinished.unlink(missing_ok=True)

    def _make_room(self, used: Path) -> None:
        """Remove the least recently used archives."""
        kept = sorted(self._folder.glob("*.zip"), key=lambda path: path.stat().st_mtime, reverse=True)
        left_bytes = self._bytes_max
        for path in kept:
            left_bytes -= path.stat().st_size
            if left_bytes < 0 and path != used:
                path.unlink(missing_ok=True)


def clone(url: str, commit: str, target: Path, tell: Tell = untold) -> None:
    """Check a commit out into the new folder `target`. Raises CodeError or OSError.

    Only this commit is fetched if the server allows that, else the whole repository. tell: called while git
    works.
    """
    if len(commit) != _COMMIT_DIGITS or not all(digit in "0123456789abcdef" for digit in commit):
        raise CodeError(f"{commit[:80]!r} is not a commit in 40 hexadecimal digits", is_permanent=True)
    if not url or url.startswith("-") or not url.isprintable():
        raise CodeError(f"{url[:80]!r} is not the URL of a repository", is_permanent=True)
    unfinished = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        _git(None, tell, "init", "--quiet", str(unfinished))
        try:
            _git(unfinished, tell, "fetch", "--quiet", "--depth", "1", "--", url, commit)
        except CodeError:
            _git(unfinished, tell, "fetch", "--quiet", "--", url, "+refs/*:refs/fetched/*")
        _git(unfinished, tell, "checkout", "--quiet", "--detach", commit)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def make_readable(folder: Path) -> None:
    """Let every user read a folder that it reaches, as the user of a container does. Raises OSError.

    The folder above keeps others of this machine out.
    """
    for parent, folders, files in os.walk(folder):
        Path(parent).chmod(0o755)
        for path in (Path(parent) / name for name in files):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o444)
        folders[:] = [name for name in folders if not (Path(parent) / name).is_symlink()]


def _git(folder: Path | None, tell: Tell, *arguments: str) -> None:
    where = [] if folder is None else ["-C", str(folder)]
    environment = {
        **os.environ,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": _GIT_PROTOCOLS,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    try:
        git = subprocess.Popen(
            ["git", *where, "-c", "core.hooksPath=/dev/null", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise CodeError("this runner has no git", hint="install it on the runner") from None
    with git:
        errors = _errors_of(git, arguments[0], tell)
    if git.returncode:
        said = errors.decode(errors="replace").strip().splitlines()
        raise CodeError(f"git {arguments[0]} failed: {said[-1] if said else git.returncode}")


def _errors_of(git: subprocess.Popen[bytes], verb: str, tell: Tell) -> bytes:
    """Wait for git; return its error output. Raises CodeError if it takes too long."""
    give_up_at = time.monotonic() + GIT_SECONDS_MAX
    while True:
        try:
            return git.communicate(timeout=LOOK_SECONDS)[1]
        except subprocess.TimeoutExpired:
            if time.monotonic() > give_up_at:
                git.kill()
                raise CodeError(f"git {verb} took longer than {GIT_SECONDS_MAX:.0f} s") from None
            tell(f"git {verb} is at work")
        except BaseException:
            git.kill()
            raise
