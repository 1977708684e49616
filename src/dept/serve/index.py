"""The index of a folder of adapters: domains, versions, who changed what, jobs. One SQLite file, shared by processes.

Every operation opens its own connection, so any thread and any process may call it. Predictions never do.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from dept.errors import DataError

SCHEMA = 1
_HERE = ""
"""in place of a domain: the row that says when a process was there last"""
_THERE = "SELECT process FROM traffic WHERE domain = ? AND"
Mode = Literal["off", "shadow", "on"]
_TABLES = """
CREATE TABLE revision (number INTEGER NOT NULL, schema INTEGER NOT NULL);
CREATE TABLE domains (
    name TEXT PRIMARY KEY, active INTEGER NOT NULL, pinned INTEGER NOT NULL, online TEXT NOT NULL,
    method TEXT NOT NULL, created REAL NOT NULL
);
CREATE TABLE signatures (domain TEXT PRIMARY KEY, at REAL NOT NULL, data BLOB NOT NULL);
CREATE TABLE versions (
    domain TEXT NOT NULL, number INTEGER NOT NULL, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, method TEXT NOT NULL,
    images INTEGER NOT NULL, job TEXT NOT NULL, verdict TEXT NOT NULL, note TEXT NOT NULL, created REAL NOT NULL,
    made_by TEXT NOT NULL, PRIMARY KEY (domain, number)
);
CREATE TABLE activations (id INTEGER PRIMARY KEY, domain TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE history (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, made_by TEXT NOT NULL, domain TEXT NOT NULL, action TEXT NOT NULL,
    version INTEGER NOT NULL, detail TEXT NOT NULL
);
CREATE INDEX history_of_domain ON history (domain, id);
CREATE TABLE jobs (id TEXT PRIMARY KEY, created REAL NOT NULL, state TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE traffic (
    process TEXT NOT NULL, domain TEXT NOT NULL, at REAL NOT NULL, record TEXT NOT NULL, PRIMARY KEY (process, domain)
);
"""


@dataclass(frozen=True)
class Domain:
    """A domain and what is served for it. Version 0 is the source model."""

    name: str
    active: int = 0
    pinned: bool = False
    online: Mode = "off"
    method: str = ""
    """of online adaptation"""
    created: float = 0.0


@dataclass(frozen=True)
class Version:
    """One adapter of a domain; its file never changes."""

    domain: str
    number: int
    sha256: str
    bytes: int
    method: str
    images: int
    """that it was adapted to; 0 if its file does not say"""
    job: str
    """the adaptation that made it; empty for an upload"""
    verdict: dict[str, Any]
    """verdict, gain, low, high, basis (class shares or labels); empty if nothing is known"""
    note: str
    created: float
    made_by: str


@dataclass(frozen=True)
class Change:
    """Who did what to a domain."""

    at: float
    made_by: str
    domain: str
    action: str
    version: int
    detail: str


class Index:
    """The index in a file; made on first use."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._reading() as db:
                db.execute("PRAGMA journal_mode = WAL")  # readers do not wait for a writer; the file remembers it
            with self._writing() as db:
                made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'revision'").fetchone()
                if made is None:
                    for statement in _TABLES.split(";"):
                        db.execute(statement)
                    db.execute("INSERT INTO revision VALUES (0, ?)", (SCHEMA,))
                found = db.execute("SELECT schema FROM revision").fetchone()[0]
        except sqlite3.Error as error:
            raise DataError(
                f"{file} cannot be used as an index ({error}). Move it away, or use another folder."
            ) from error
        if found != SCHEMA:
            raise DataError(f"{file} has schema {found}; this version of dept uses {SCHEMA}. Use another folder.")

    # -- connections ----------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.file, timeout=10, isolation_level=None)) as db:
            db.row_factory = sqlite3.Row
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that has the right to write from its start, so that what it reads stays true."""
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextmanager
    def changing(self) -> Iterator[Transaction]:
        """A change of domains or versions, which all processes see when it is complete."""
        with self._writing() as db:
            yield Transaction(db)
            db.execute("UPDATE revision SET number = number + 1")

    # -- reading --------------------------------------------------------------------------------------------

    def revision(self) -> int:
        """Grows with every change of domains and versions."""
        with self._reading() as db:
            return int(db.execute("SELECT number FROM revision").fetchone()[0])

    def domains(self) -> list[Domain]:
        """All domains, by name."""
        with self._reading() as db:
            return [_domain(row) for row in db.execute("SELECT * FROM domains ORDER BY name")]

    def domain(self, name: str) -> Domain | None:
        """One domain."""
        with self._reading() as db:
            row = db.execute("SELECT * FROM domains WHERE name = ?", (name,)).fetchone()
        return None if row is None else _domain(row)

    def versions(self, domain: str | None = None) -> list[Version]:
        """Versions of a domain, or of all; the latest first."""
        where, values = ("WHERE domain = ?", (domain,)) if domain is not None else ("", ())
        with self._reading() as db:
            rows = db.execute(f"SELECT * FROM versions {where} ORDER BY domain, number DESC", values).fetchall()
        return [_version(row) for row in rows]

    def version(self, domain: str, number: int) -> Version | None:
        """One version of a domain."""
        with self._reading() as db:
            return Transaction(db).version(domain, number)

    def previous(self) -> dict[str, int]:
        """Domain -> the version that a rollback would serve, for domains that have one."""
        found: dict[str, list[int]] = {}
        with self._reading() as db:
            for row in db.execute("SELECT domain, version FROM activations ORDER BY id"):
                found.setdefault(row["domain"], [0]).append(row["version"])
        return {domain: versions[-2] for domain, versions in found.items()}

    def active(self) -> tuple[dict[str, Version], dict[str, int]]:
        """Domain -> its active version, unless that is the source model; and domain -> how many versions it has."""
        joined = "SELECT v.* FROM versions v JOIN domains d ON v.domain = d.name AND v.number = d.active"
        with self._reading() as db:
            found = {row["domain"]: _version(row) for row in db.execute(joined)}
            counts = dict(db.execute("SELECT domain, COUNT(*) FROM versions GROUP BY domain").fetchall())
        return found, counts

    def history(self, domain: str, most: int = 200) -> list[Change]:
        """What was done to a domain, the latest first."""
        columns = "at, made_by, domain, action, version, detail"
        query = f"SELECT {columns} FROM history WHERE domain = ? ORDER BY id DESC LIMIT ?"
        with self._reading() as db:
            return [Change(*row) for row in db.execute(query, (domain, most))]

    def signatures(self, since: float) -> dict[str, tuple[float, bytes]]:
        """Domain -> (when it was written, what its images look like), for those written after a Unix time."""
        query = "SELECT domain, at, data FROM signatures WHERE at > ?"
        with self._reading() as db:
            return {row["domain"]: (row["at"], row["data"]) for row in db.execute(query, (since,))}

    # -- jobs -----------------------------------------------------------------------------------------------

    def save_job(self, job: str, state: str, record: dict[str, Any]) -> None:
        """Write what is known of a job."""
        with self._writing() as db:
            created = record.get("created", time.time())
            db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)", (job, created, state, json.dumps(record)))

    def claim_job(self, job: str, states: tuple[str, ...], state: str, **changes: Any) -> dict[str, Any] | None:
        """Move a job to another state if it is in one of `states`; its record, or None if somebody was faster."""
        with self._writing() as db:
            row = db.execute("SELECT state, record FROM jobs WHERE id = ?", (job,)).fetchone()
            if row is None or row["state"] not in states:
                return None
            record = json.loads(row["record"]) | changes
            db.execute("UPDATE jobs SET state = ?, record = ? WHERE id = ?", (state, json.dumps(record), job))
        return cast(dict[str, Any], record)

    def jobs(self, most: int = 200) -> list[tuple[str, str, dict[str, Any]]]:
        """(id, state, record) of jobs, the latest first."""
        with self._reading() as db:
            rows = db.execute("SELECT id, state, record FROM jobs ORDER BY created DESC LIMIT ?", (most,)).fetchall()
        return [(row["id"], row["state"], json.loads(row["record"])) for row in rows]

    def job(self, job: str) -> tuple[str, dict[str, Any]] | None:
        """(state, record) of one job."""
        with self._reading() as db:
            row = db.execute("SELECT state, record FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if row is None else (row["state"], json.loads(row["record"]))

    def forget_job(self, job: str) -> None:
        """Remove a job from the list."""
        with self._writing() as db:
            db.execute("DELETE FROM jobs WHERE id = ?", (job,))

    # -- traffic --------------------------------------------------------------------------------------------

    def save_traffic(self, process: str, records: dict[str, dict[str, Any]]) -> None:
        """What a process counted, by domain, and that it is there."""
        now = time.time()
        rows = [(process, domain, now, json.dumps(record)) for domain, record in (records | {_HERE: {}}).items()]
        with self._writing() as db:
            db.executemany("INSERT OR REPLACE INTO traffic VALUES (?, ?, ?, ?)", rows)

    def traffic(self, since: float) -> dict[str, list[dict[str, Any]]]:
        """Domain -> what each process counted that was there after a Unix time."""
        found: dict[str, list[dict[str, Any]]] = {}
        query = f"SELECT domain, record FROM traffic WHERE domain != ? AND process IN ({_THERE} at >= ?)"
        with self._reading() as db:
            for row in db.execute(query, (_HERE, _HERE, since)):
                found.setdefault(row["domain"], []).append(json.loads(row["record"]))
        return found

    def forget_traffic(self, before: float) -> None:
        """Remove what processes have left that were not there after a Unix time."""
        with self._writing() as db:
            db.execute(f"DELETE FROM traffic WHERE process NOT IN ({_THERE} at >= ?)", (_HERE, before))


class Transaction:
    """Changes of domains and versions inside one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def domain(self, name: str) -> Domain | None:
        """One domain."""
        row = self._db.execute("SELECT * FROM domains WHERE name = ?", (name,)).fetchone()
        return None if row is None else _domain(row)

    def version(self, domain: str, number: int) -> Version | None:
        """One version of a domain."""
        row = self._db.execute("SELECT * FROM versions WHERE domain = ? AND number = ?", (domain, number)).fetchone()
        return None if row is None else _version(row)

    def next_number(self, domain: str) -> int:
        """The number of the next version; numbers are not used again."""
        highest = "SELECT MAX(version) FROM history WHERE domain = ?"  # which outlives the versions
        return int(self._db.execute(highest, (domain,)).fetchone()[0] or 0) + 1

    def add_domain(self, name: str) -> None:
        """A domain that is served by the source model, unless it is there already."""
        values = (name, 0, 0, "off", "", time.time())
        self._db.execute("INSERT OR IGNORE INTO domains VALUES (?, ?, ?, ?, ?, ?)", values)

    def add_version(self, version: Version) -> None:
        """A new version, not active yet."""
        values = [version.domain, version.number, version.sha256, version.bytes, version.method, version.images]
        values += [version.job, json.dumps(version.verdict), version.note, version.created, version.made_by]
        self._db.execute(f"INSERT INTO versions VALUES ({', '.join('?' * 11)})", values)

    def numbers(self, domain: str) -> list[int]:
        """Numbers of the versions that are there, the latest first."""
        query = "SELECT number FROM versions WHERE domain = ? ORDER BY number DESC"
        return [int(row[0]) for row in self._db.execute(query, (domain,))]

    def remove_version(self, domain: str, number: int) -> None:
        """Forget a version; its history stays."""
        self._db.execute("DELETE FROM versions WHERE domain = ? AND number = ?", (domain, number))
        self._db.execute("DELETE FROM activations WHERE domain = ? AND version = ?", (domain, number))

    def set_verdict(self, domain: str, number: int, verdict: dict[str, Any]) -> None:
        """What is known of a version's gain."""
        values = (json.dumps(verdict), domain, number)
        self._db.execute("UPDATE versions SET verdict = ? WHERE domain = ? AND number = ?", values)

    def update_domain(self, name: str, **values: Any) -> None:
        """Set columns of a domain."""
        columns = ", ".join(f"{column} = ?" for column in values)
        self._db.execute(f"UPDATE domains SET {columns} WHERE name = ?", (*values.values(), name))

    def activate(self, domain: str, number: int) -> None:
        """Serve a version, and remember it for the way back."""
        self._db.execute("INSERT INTO activations (domain, version) VALUES (?, ?)", (domain, number))
        self.update_domain(domain, active=number)

    def undo_activation(self, domain: str) -> int | None:
        """Serve what was served before; its number, or None if the source model is all there ever was."""
        rows = self._db.execute("SELECT id, version FROM activations WHERE domain = ? ORDER BY id DESC", (domain,))
        past = [(int(row["id"]), int(row["version"])) for row in rows.fetchmany(2)]
        if not past:
            return None
        self._db.execute("DELETE FROM activations WHERE id = ?", (past[0][0],))
        number = past[1][1] if len(past) > 1 else 0
        self.update_domain(domain, active=number)
        return number

    def set_signature(self, domain: str, data: bytes) -> None:
        """What the images of a domain look like, see `routing.dump`."""
        self._db.execute("INSERT OR REPLACE INTO signatures VALUES (?, ?, ?)", (domain, time.time(), data))

    def note(self, made_by: str, domain: str, action: str, version: int = 0, detail: str = "") -> None:
        """Add a line to the history."""
        values = (time.time(), made_by, domain, action, version, detail)
        query = "INSERT INTO history (at, made_by, domain, action, version, detail) VALUES (?, ?, ?, ?, ?, ?)"
        self._db.execute(query, values)


def _domain(row: sqlite3.Row) -> Domain:
    mode = cast(Mode, row["online"])
    return Domain(row["name"], row["active"], bool(row["pinned"]), mode, row["method"], row["created"])


def _version(row: sqlite3.Row) -> Version:
    values = dict(row)
    return Version(**values | {"verdict": json.loads(values["verdict"])})
