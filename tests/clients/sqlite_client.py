"""SQLite in the journal modes delete, truncate and wal: what was committed is there, what was rolled back is not."""

import contextlib
import sqlite3
import threading

from checks import check, expect, main

MODES = ["delete", "truncate", "wal"]
THREADS = 3
ROWS_PER_THREAD = 200


def connect(path):
    return contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None))


def insert(path, thread):
    """Each row in a transaction of its own; every tenth is rolled back."""
    with connect(path) as database:
        for number in range(ROWS_PER_THREAD):
            database.execute("begin immediate")
            row = (thread, number, bytes([thread]) * (number * 17 % 4000))
            database.execute("insert into rows values (?, ?, ?)", row)
            database.execute("rollback" if number % 10 == 9 else "commit")


def fill(path, mode):
    with connect(path) as database:
        expect(database.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode, "the mode is refused")
        database.execute("create table rows (thread, number, bytes, primary key (thread, number))")
    errors = []

    def work(thread):
        try:
            insert(path, thread)
        except sqlite3.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not errors, errors)


def shrink(path):
    with connect(path) as database:
        database.execute("delete from rows where number % 10 = 0")
        database.execute("vacuum")


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
        found = database.execute("select thread, number, length(bytes) from rows order by thread, number").fetchall()
        expect(found == wanted, f"{len(found)} rows instead of {len(wanted)}")
        for thread, value in database.execute("select thread, bytes from rows"):
            expect(value == bytes([thread]) * len(value), f"wrong bytes in a row of thread {thread}")


def keeps_its_mode(path, mode):
    # delete and truncate are not stored in the file: a new connection says delete.
    with connect(path) as database:
        found = database.execute("pragma journal_mode").fetchone()[0]
        expect(found == ("wal" if mode == "wal" else "delete"), found)


def write(directory, _notes):
    directory.mkdir()
    for mode in MODES:
        path = directory / f"{mode}.db"
        check(f"sqlite {mode}: three threads insert", fill, path, mode)
        check(f"sqlite {mode}: delete and vacuum", shrink, path)


def verify(directory, _notes):
    for mode in MODES:
        path = directory / f"{mode}.db"
        check(f"sqlite {mode}: integrity_check", is_sound, path)
        check(f"sqlite {mode}: all that was committed, and nothing else", has_what_was_committed, path)
        check(f"sqlite {mode}: journal mode", keeps_its_mode, path, mode)


main(write, verify)
