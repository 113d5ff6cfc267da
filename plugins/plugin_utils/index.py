# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The history of all hosts as one table, to be searched; SQLite by default, PostgreSQL by URL.

The JSON records are the truth and this is derived from them: :meth:`Index.refresh` compares names and adds what is
missing, :meth:`Index.rebuild` begins anew. So a write that was killed at any moment costs nothing but the next refresh.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..module_utils import files
from . import records
from .columns import COLUMNS, misfits, storable

FILE = "history.sqlite"
SCHEMA = 1
BUSY_S = 30.0  # patience with another writer

_KEY = ("host", "id", "concurrency")


class HistoryError(Exception):
    """The index cannot be used; the message says why. The records are not affected."""


class Store(Protocol):
    """What both databases are asked for: one transaction of statements with named parameters (``:name``)."""

    def transaction(self) -> Any:
        """A context manager that gives ``run(sql, rows)`` and commits, or rolls back on an error."""

    def discard(self) -> None:
        """Remove a damaged database, where it is ours to remove."""


class Run(Protocol):
    """Run a statement once for each row of parameters; rows of a SELECT come back as dictionaries."""

    def __call__(self, sql: str, rows: Sequence[dict[str, Any]] = ({},)) -> list[dict[str, Any]]: ...


class SqliteStore:
    """A file beside the records. WAL: readers are never blocked, and a killed writer leaves the last state."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """See :class:`Store`."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("BEGIN IMMEDIATE")

            def run(sql: str, rows: Sequence[dict[str, Any]] = ({},)) -> list[dict[str, Any]]:
                if sql.startswith("SELECT"):
                    return [dict(row) for row in connection.execute(sql, rows[0])]
                for row in rows:
                    connection.execute(sql, row)
                return []

            yield run
            connection.execute("COMMIT")
        finally:
            connection.close()  # rolls back what was not committed

    def discard(self) -> None:
        """Set a damaged file aside: it is derived from the records and made anew."""
        aside = f"{self.path}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        for suffix in ("-wal", "-shm"):
            if os.path.exists(self.path + suffix):
                os.unlink(self.path + suffix)
        if os.path.exists(self.path):
            os.replace(self.path, aside)


class SqlalchemyStore:
    """A database server by URL, through SQLAlchemy (the extra ``history`` of the package)."""

    def __init__(self, url: str) -> None:
        try:
            import sqlalchemy
        except ImportError as error:
            raise HistoryError(
                "a history by URL needs SQLAlchemy on the controller: pip install 'groundstate[history]'"
            ) from error
        if url.startswith(("postgres://", "postgresql://")):
            url = "postgresql+psycopg://" + url.partition("://")[2]
        self.text = sqlalchemy.text
        try:
            self.engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            raise HistoryError(f"the history's URL cannot be used: {_short(error)}") from error
        except ValueError:  # from None: it holds a part of the URL, and that of the password where it is cut there
            raise HistoryError(
                "the history's URL cannot be used: its port is no number (signs such as @ : / in a password have to be "
                "written as %40 %3A %2F)"
            ) from None

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """See :class:`Store`."""
        with self.engine.begin() as connection:

            def run(sql: str, rows: Sequence[dict[str, Any]] = ({},)) -> list[dict[str, Any]]:
                if sql.startswith("SELECT"):
                    return [dict(row) for row in connection.execute(self.text(sql), rows[0]).mappings()]
                if rows:
                    connection.execute(self.text(sql), list(rows))
                return []

            yield run

    def discard(self) -> None:
        """Nothing: somebody else's server is not ours to repair."""


def _short(error: Exception) -> str:
    """The first line of a database's message; none of them holds the URL with its password."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def open_index(records_dir: str, url: str = "") -> Index:
    """The index of a folder of records: ``history.sqlite`` in it, or the database of a URL. Raises HistoryError."""
    top = os.path.expanduser(records_dir)
    store: Store = SqlalchemyStore(url) if url else SqliteStore(os.path.join(top, FILE))
    return Index(store, top)


class Index:
    """The table, kept in step with the records."""

    def __init__(self, store: Store, records_dir: str) -> None:
        self.store = store
        self.records_dir = records_dir

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        """A transaction on tables that exist; every failure of the database is an HistoryError."""
        try:
            with self.store.transaction() as run:
                run("CREATE TABLE IF NOT EXISTS groundstate_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
                told = run("SELECT value FROM groundstate_meta WHERE name = 'schema'")
                if told and told[0]["value"] != str(SCHEMA):
                    run("DROP TABLE IF EXISTS groundstate_history")
                columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
                run(f"CREATE TABLE IF NOT EXISTS groundstate_history ({columns}, PRIMARY KEY ({', '.join(_KEY)}))")
                run(
                    "INSERT INTO groundstate_meta (name, value) VALUES ('schema', :value) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    [{"value": str(SCHEMA)}],
                )
                yield run
        except (records.RecordError, HistoryError):
            raise
        except Exception as error:
            if not _of_database(error):
                raise
            raise HistoryError(f"the history cannot be used: {_short(error)}") from error

    def refresh(self, hosts: Sequence[str] | None = None) -> list[str]:
        """Add what the table lacks, drop what is gone; warnings for records that cannot be read.

        A damaged SQLite file is set aside and made anew. Raises HistoryError when the database does not work.
        """
        try:
            return self._refresh(hosts)
        except HistoryError as error:
            # Damage is told as this very class. Its subclasses are for what is busy, full, not writable, or asked
            # wrongly: no reason to throw the file away.
            if error.__cause__.__class__ is not sqlite3.DatabaseError:
                raise
            self.store.discard()
            return self._refresh(None)

    def rebuild(self) -> list[str]:
        """Begin anew from the records, in one transaction: readers see the old table or the new one."""
        return self._refresh(None, anew=True)

    def _refresh(self, hosts: Sequence[str] | None, anew: bool = False) -> list[str]:
        warnings: list[str] = []
        with self._transaction() as run:
            if anew:
                run("DELETE FROM groundstate_history")
            for host in hosts if hosts is not None else records.hosts(self.records_dir):
                there = {
                    identifier: kind
                    for kind in (records.FOREIGN, "")
                    for identifier in records.identifiers(self.records_dir, host, kind)
                }
                known = {
                    row["id"]
                    for row in run("SELECT DISTINCT id FROM groundstate_history WHERE host = :host", [{"host": host}])
                }
                gone = [{"host": host, "id": identifier} for identifier in sorted(known - set(there))]
                if gone:
                    run("DELETE FROM groundstate_history WHERE host = :host AND id = :id", gone)
                rows = []
                for identifier in sorted(set(there) - known):
                    try:
                        rows += fitting(self._rows(host, identifier, there[identifier]), self.records_dir)
                    except records.RecordError as error:
                        warnings.append(str(error))
                if rows:
                    run(_INSERT, rows)
            warnings += self._mark(run)
        return warnings

    def _rows(self, host: str, identifier: str, kind: str) -> list[dict[str, Any]]:
        if kind:
            return foreign_rows(self.records_dir, host, identifier)
        record = records.read_record(self.records_dir, host, identifier)
        try:
            return [] if record is None else own_rows(host, record)
        except (KeyError, TypeError, AttributeError) as error:
            path = records.record_path(self.records_dir, host, identifier)
            raise records.RecordError(f"record {path} is damaged ({error!r}); move it away") from error

    def _mark(self, run: Run) -> list[str]:
        """``in_baseline`` as the baselines of all groups say."""
        wanted: set[tuple[str, str]] = set()
        warnings = []
        for group in records.hosts(self.records_dir):
            try:
                names = records.baseline_names(self.records_dir, group)
                wanted.update(one for one in names if all(map(storable, one)))
            except records.RecordError as error:
                warnings.append(str(error))
        marked = {
            (row["host"], row["id"])
            for row in run("SELECT DISTINCT host, id FROM groundstate_history WHERE in_baseline = TRUE")
        }
        for value, names in (("FALSE", marked - wanted), ("TRUE", wanted - marked)):
            if names:
                run(
                    f"UPDATE groundstate_history SET in_baseline = {value} WHERE host = :host AND id = :id",
                    [{"host": host, "id": identifier} for host, identifier in sorted(names)],
                )
        return warnings

    def rows(self, headlines: bool = False, **where: Any) -> list[dict[str, Any]]:
        """Rows with these values, oldest first; ``headlines``: only the level that verdicts speak of."""
        unknown = set(where) - set(COLUMNS)
        if unknown:
            raise ValueError(f"the history has no column {', '.join(sorted(unknown))}")
        conditions = [f"{name} = :{name}" for name in where] + (["headline = TRUE"] if headlines else [])
        clause = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        with self._transaction() as run:
            found = run(
                f"SELECT {', '.join(COLUMNS)} FROM groundstate_history{clause} ORDER BY id, host, concurrency", [where]
            )
        flags = [name for name, kind in COLUMNS.items() if kind.startswith("BOOLEAN")]
        return [{**row, **{name: bool(row[name]) for name in flags}} for row in found]


_INSERT = (
    f"INSERT INTO groundstate_history ({', '.join(COLUMNS)}) VALUES ({', '.join(':' + name for name in COLUMNS)}) "
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in _KEY)
)


def _of_database(error: Exception) -> bool:
    """Whether an error is the database's or its driver's, not a mistake of ours."""
    if isinstance(error, (sqlite3.Error, OSError)):
        return True
    return any(kind.__module__.startswith("sqlalchemy.exc") for kind in type(error).__mro__)


def fitting(rows: list[dict[str, Any]], records_dir: str) -> list[dict[str, Any]]:
    """The rows themselves. Raises RecordError naming the file when the table cannot hold what came out of it."""
    for row in rows:
        wrong = misfits(row)
        if wrong:
            path = os.path.join(records_dir, row["path"])
            raise records.RecordError(f"{path} is damaged ({', '.join(wrong)}); move it away")
    return rows


def own_rows(host: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a record of ours."""
    measurement, told = record["measurement"], record["verdict"]
    server, workload = measurement["server"], measurement["workload"]
    first = measurement["headline"]["concurrency"]
    common = {
        **dict.fromkeys(COLUMNS),
        "host": host,
        "id": record["id"],
        "source": "groundstate",
        "measured_at": measurement["started_at"],
        "server": server["name"],
        "engine": server["engine"],
        "model": server["served_model_name"],
        "start_id": server["start_id"],
        "baseline_key": record.get("key"),
        "state_hash": (record["fingerprints"].get("before") or {}).get("state_hash"),
        "workload_hash": measurement["workload_hash"],
        "prompt_tokens": workload.get("prompt_tokens"),
        "output_tokens": workload.get("output_tokens"),
        "in_baseline": False,
        "path": f"{host}/{record['id']}.json",
    }
    rows = []
    for level in measurement["levels"]:
        decode = level.get("decode_tok_s") or {}
        rows.append(
            {
                **common,
                "concurrency": level["concurrency"],
                "headline": level["concurrency"] == first,
                "decode_tok_s": decode.get("mean"),
                "decode_low": decode.get("low"),
                "decode_high": decode.get("high"),
                "output_tok_s": (level.get("output_tok_s") or {}).get("mean"),
                "ttft_s": (level.get("ttft_s") or {}).get("mean"),
                "tpot_s": (level.get("tpot_s") or {}).get("mean"),
                "requests": level.get("requests"),
                "failed": sum((level.get("errors") or {}).values()),
                "verdict": told.get("verdict") if level["concurrency"] == first else None,
                "ratio": told.get("ratio") if level["concurrency"] == first else None,
            }
        )
    return rows


def foreign_rows(records_dir: str, host: str, identifier: str) -> list[dict[str, Any]]:
    """The rows of an imported result. Raises RecordError when its file is damaged."""
    path = records.foreign_path(records_dir, host, identifier)
    try:
        found = files.read_json(path)
        return [
            {
                **dict.fromkeys(COLUMNS),
                **{name: level.get(name) for name in COLUMNS if name in level},
                "host": host,
                "id": identifier,
                "source": found["source"],
                "measured_at": found["measured_at"],
                "model": found["model"],
                "engine": found.get("engine"),
                "headline": position == 0,
                "in_baseline": False,
                "path": f"{host}/{records.FOREIGN}/{identifier}.json",
            }
            for position, level in enumerate(found["levels"])
        ]
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        raise records.RecordError(f"imported result {path} is damaged ({error}); move it away") from error
