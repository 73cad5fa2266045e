"""DuckDB, and the JSON of two trace formats: what `dlio-fs report` writes for other tools holds the same calls, and all of them.

DLIO_FS in the environment is the program.
"""

import gzip
import json
import os
import subprocess

import duckdb

from checks import check, expect, main, until

FILES = 30
WORKERS = 3
SIZE = 50_000
MOVED = ("read", "write")


def report(source, form, output):
    command = [os.environ["DLIO_FS"], "report", source, "--format", form, "--output", output]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    expect(result.returncode == 0 and result.stderr == "", f"{command}: {result.stderr}")


def work(directory):
    directory.mkdir()
    for number in range(FILES):
        (directory / f"{number};é.bin").write_bytes(os.urandom(SIZE + number))
    for number in range(WORKERS):
        if (pid := os.fork()) == 0:
            for file in sorted(directory.iterdir())[number::WORKERS]:
                file.read_bytes()
            os._exit(0)
        expect(os.waitpid(pid, 0)[1] == 0, "a worker failed")
    try:
        (directory / "absent").read_bytes()
    except FileNotFoundError:
        pass


def counted(notes):
    """Calls and bytes by operation, as the mount has counted them."""
    sums = {}
    for one in json.loads((notes / "run.json").read_text())["operations"]:
        calls, size = sums.get(one["op"], (0, 0))
        sums[one["op"]] = (calls + one["calls"], size + one["bytes"])
    return sums


def rows(notes, query, table="operations"):
    return duckdb.sql(query.replace("FROM t", f"FROM '{notes}/tables/{table}.parquet'")).fetchall()


def in_table(notes):
    return {op: (calls, int(size)) for op, calls, size in rows(notes, "SELECT op, count(*), sum(bytes) FROM t GROUP BY op")}


def moved(sums):
    return {op: sums[op] for op in MOVED}


def record(mount, notes):
    """Keeps a recording in which every read and write is traced, and what it becomes."""
    recording = notes / "run.dlio"

    def kept():
        recording.write_bytes((mount / ".dlio/recording").read_bytes())
        report(recording, "json", notes / "run.json")
        report(recording, "parquet", notes / "tables")
        return moved(in_table(notes)) == moved(counted(notes))

    until("the trace to have every call", kept)
    report(recording, "dftracer", notes / "run.pfw.gz")
    report(recording, "chrome", notes / "run.trace.json")


def files_are_told(notes):
    [(files, read, written, opens)] = rows(
        notes, "SELECT count(*), sum(bytes_read), sum(bytes_written), sum(opens) FROM t WHERE path LIKE '%.bin'", "files"
    )
    size = sum(SIZE + number for number in range(FILES))
    expect((files, read, written, opens) == (FILES, size, size, 2 * FILES), f"{(files, read, written, opens)}")


def calls_are_told(notes):
    [(pids,)] = rows(notes, "SELECT count(DISTINCT pid) FROM t WHERE op = 'read' AND bytes > 0")
    expect(pids == WORKERS, f"{pids} processes have read")
    [(late, failed, unnamed)] = rows(
        notes,
        "SELECT count(*) FILTER (abs(epoch(began) - epoch(now())) > 3600), count(*) FILTER (errno = 'ENOENT'), "
        "count(*) FILTER (op = 'read' AND path NOT LIKE '%.bin') FROM t",
    )
    expect(late == 0, f"{late} calls were not made in this hour")
    expect(failed > 0, "no call has failed")
    expect(unnamed == 0, f"{unnamed} reads are of a file without a name")


def dftracer_holds_the_same(notes):
    lines = gzip.open(notes / "run.pfw.gz", "rt").read().splitlines()
    expect((lines[0], lines[-1]) == ("[", "]"), f"{lines[0]} ... {lines[-1]}")
    sums, names = {}, {}
    for event in map(json.loads, lines[1:-1]):
        args = event["args"]
        if event["ph"] == "M":
            names[args["value"]] = args["name"]
            continue
        expect(args["fhash"] in names and args["hhash"] in names, f"{event} names what was not told")
        calls, size = sums.get(event["name"], (0, 0))
        sums[event["name"]] = (calls + 1, size + max(args["ret"], 0))
    expect(moved(sums) == moved(counted(notes)), f"{moved(sums)}")


def chrome_sums(events):
    """Calls and bytes by operation, and all nanoseconds, of pairs of events."""
    sums, nanos, rows = {}, 0, {}
    for event in events:
        if event["ph"] == "b":
            rows.setdefault(event["id"], []).append(event)
        elif event["ph"] == "e":
            begun = rows[event["id"]].pop()
            expect((begun["name"], begun["pid"]) == (event["name"], event["pid"]), f"{begun} and {event}")
            args = begun.get("args", {})
            if "handle" in args:
                calls, size = sums.get(event["name"], (0, 0))
                sums[event["name"]] = (calls + 1, size + args.get("bytes", 0))
                nanos += round(event["ts"] * 1000) - round(begun["ts"] * 1000)
    expect(not any(rows.values()), "a row is open at the end")
    return sums, nanos


def chrome_holds_the_same(notes):
    trace = json.loads((notes / "run.trace.json").read_text())
    sums, nanos = chrome_sums(trace["traceEvents"])
    expect(sums == in_table(notes), f"{sums}")
    [(took,)] = rows(notes, "SELECT sum(took_ns) FROM t")
    expect(nanos == took, f"{nanos} ns, {took} in the table")
    expect(trace["dlio-fs"]["calls_dropped"] == 0, "calls were dropped")


def write(directory, notes):
    check("files are written and read", work, directory)
    check("what was observed is recorded", record, directory.parent, notes)


def verify(directory, notes):
    check("the table of files", files_are_told, notes)
    check("the table of calls", calls_are_told, notes)
    check("DFTracer's lines", dftracer_holds_the_same, notes)
    check("Chrome's pairs", chrome_holds_the_same, notes)


main(write, verify)
