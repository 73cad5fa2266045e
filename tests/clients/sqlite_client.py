"""SQLite in its six journal modes: what was committed is there, and what was rolled back is not where there is a journal."""

import contextlib
import sqlite3
import threading

from checks import check, expect, main

MODES = ["delete", "truncate", "persist", "memory", "wal", "off"]
THREADS = 3
ROWS_PER_THREAD = 40
# Rows that are inserted through a connection of their own.
SESSIONS = 12


def connect(path):
    return contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None))


def set_mode(database, mode):
    """Only wal is kept in the file; the others are each connection's."""
    found = database.execute(f"pragma journal_mode={mode}").fetchone()[0]
    expect(found == mode, f"{found} instead of {mode}")


def insert(path, thread, mode):
    """Each row in a transaction of its own; every tenth is rolled back."""
    with connect(path) as database:
        set_mode(database, mode)
        for number in range(ROWS_PER_THREAD):
            # Without a journal nothing can be rolled back.
            if mode == "off" and number % 10 == 9:
                continue
            database.execute("begin immediate")
            row = (thread, number, bytes([thread]) * (number * 17 % 4000))
            database.execute("insert into rows values (?, ?, ?)", row)
            database.execute("rollback" if number % 10 == 9 else "commit")


def fill(path, mode):
    with connect(path) as database:
        set_mode(database, mode)
        database.execute("create table rows (thread, number, bytes, primary key (thread, number))")
    errors = []

    def work(thread):
        try:
            insert(path, thread, mode)
        except sqlite3.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not errors, errors)


def shrink(path, mode):
    with connect(path) as database:
        set_mode(database, mode)
        database.execute("delete from rows where number % 10 = 0")
        database.execute("vacuum")


def sessions(paths):
    """One row for each connection: in between a database is closed, and its file may be moved."""
    for number in range(SESSIONS):
        for mode, path in paths.items():
            with connect(path) as database:
                set_mode(database, mode)
                database.execute("begin immediate")
                count = database.execute("select count(*) from rows where thread = -1").fetchone()[0]
                expect(count == number, f"{count} rows before row {number} in mode {mode}")
                database.execute("insert into rows values (-1, ?, ?)", (number, bytes([number]) * 999))
                database.execute("commit")


def has_sessions(path):
    with connect(path) as database:
        found = database.execute("select number, bytes from rows where thread = -1 order by number").fetchall()
        wanted = [(number, bytes([number]) * 999) for number in range(SESSIONS)]
        expect(found == wanted, f"{len(found)} rows, or wrong bytes")


def is_sound(path):
    with connect(path) as database:
        result = database.execute("pragma integrity_check").fetchall()
        expect(result == [("ok",)], result)


def has_what_was_committed(path):
    wanted = [
        (thread, number, number * 17 % 4000)
        for thread in range(THREADS)
        for number in range(ROWS_PER_THREAD)
        if number % 10 not in (0, 9)
    ]
    with connect(path) as database:
        found = database.execute("select thread, number, length(bytes) from rows where thread >= 0 order by thread, number").fetchall()
        expect(found == wanted, f"{len(found)} rows instead of {len(wanted)}")
        for thread, value in database.execute("select thread, bytes from rows where thread >= 0"):
            expect(value == bytes([thread]) * len(value), f"wrong bytes in a row of thread {thread}")


def keeps_its_mode(path, mode):
    # Only wal is stored in the file: else a new connection says delete.
    with connect(path) as database:
        found = database.execute("pragma journal_mode").fetchone()[0]
        expect(found == ("wal" if mode == "wal" else "delete"), found)


def write(directory, _notes):
    directory.mkdir()
    for mode in MODES:
        path = directory / f"{mode}.db"
        check(f"sqlite {mode}: three threads insert", fill, path, mode)
        check(f"sqlite {mode}: delete and vacuum", shrink, path, mode)
    check("sqlite: a connection for each row", sessions, {mode: directory / f"{mode}.db" for mode in MODES})


def verify(directory, _notes):
    for mode in MODES:
        path = directory / f"{mode}.db"
        check(f"sqlite {mode}: integrity_check", is_sound, path)
        check(f"sqlite {mode}: all that was committed, and nothing else", has_what_was_committed, path)
        check(f"sqlite {mode}: what each connection has inserted", has_sessions, path)
        check(f"sqlite {mode}: journal mode", keeps_its_mode, path, mode)


main(write, verify)
