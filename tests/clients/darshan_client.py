"""PyDarshan: the log that `dlio-fs report --format darshan` writes has the numbers of `.dlio/files.tsv`, and of what was done.

DLIO_FS in the environment is the program.
"""

import json
import os
import re
import subprocess
import sys
import urllib.parse

import darshan

from checks import check, expect, main, until

FILES = 40
WORKERS = 3
CHUNK = 4096
ODD_NAMES = ("two words.bin", "grün.bin", "two\nlines.bin")
SIZES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
UNKNOWN = ("FILENOS", "DUPS", "SEEKS", "MMAPS", "RENAME_SOURCES", "RENAME_TARGETS", "MEM_NOT_ALIGNED", "MEM_ALIGNMENT")
UNKNOWN_RANKS = ("FASTEST_RANK", "FASTEST_RANK_BYTES", "SLOWEST_RANK", "SLOWEST_RANK_BYTES")
UNKNOWN_TIMES = ("F_FASTEST_RANK_TIME", "F_VARIANCE_RANK_TIME", "F_VARIANCE_RANK_BYTES")

# What `known` does, by Darshan's rules; all else is 0 or not known.
KNOWN = {
    "OPENS": 1, "READS": 1, "WRITES": 3, "FSYNCS": 1, "FDSYNCS": 1, "MODE": 0o640,
    "BYTES_READ": 2000, "BYTES_WRITTEN": 16434, "MAX_BYTE_READ": 2099, "MAX_BYTE_WRITTEN": 20049,
    "CONSEC_WRITES": 1, "SEQ_READS": 1, "SEQ_WRITES": 2, "RW_SWITCHES": 1,
    "FILE_NOT_ALIGNED": 2, "FILE_ALIGNMENT": 4096, "SIZE_READ_1K_10K": 1, "SIZE_WRITE_0_100": 1, "SIZE_WRITE_1K_10K": 2,
    "STRIDE1_STRIDE": 3616, "STRIDE1_COUNT": 1, "ACCESS1_ACCESS": 8192, "ACCESS1_COUNT": 2,
    "ACCESS2_ACCESS": 2000, "ACCESS2_COUNT": 1, "ACCESS3_ACCESS": 50, "ACCESS3_COUNT": 1,
}
# These depend on how long a call took, or on what the kernel asks by itself.
NOT_GIVEN = ("MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE", "STATS")

# Darshan's own functions, as `darshan-parser` calls them, print the records of a log.
PRINTER = """
import ctypes, sys, darshan
from pathlib import Path
log, mount = sys.argv[1], sys.argv[2]
names = darshan.DarshanReport(log, read_all=False)
names.read_name_records()
lib = ctypes.CDLL(str(next((Path(darshan.__file__).parents[1] / "darshan.libs").glob("libdarshan-util*"))))
text = ctypes.c_char_p
class Module(ctypes.Structure):
    _fields_ = [("get", ctypes.c_void_p), ("put", ctypes.c_void_p),
                ("print", ctypes.CFUNCTYPE(None, ctypes.c_void_p, text, text, text))]
modules = (ctypes.POINTER(Module) * 18).in_dll(lib, "mod_logutils")
lib.darshan_log_open.restype = ctypes.c_void_p
handle = ctypes.c_void_p(lib.darshan_log_open(log.encode()))
for module in (1, 15):
    record = ctypes.c_void_p()
    while lib.darshan_log_get_record(handle, module, ctypes.byref(record)) > 0:
        name = names.name_records[ctypes.cast(record, ctypes.POINTER(ctypes.c_uint64))[0]]
        known = name.startswith(mount)
        where = (mount, "fuse.dlio") if known else ("UNKNOWN", "UNKNOWN")
        modules[module].contents.print(record, name.encode(), where[0].encode(), where[1].encode())
        record = ctypes.c_void_p()
ctypes.CDLL(None).fflush(None)
"""


def report(source, form, output, *more):
    program = os.environ["DLIO_FS"]
    command = [program, "report", str(source), "--format", form, "--output", str(output), *more]
    result = subprocess.run(command, capture_output=True, text=True)
    expect(result.returncode == 0 and result.stderr == "", f"{' '.join(command)}: {result.stderr}")


# What is done


def known(path):
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)
    for offset, size in ((0, 8192), (8192, 8192), (20_000, 50)):
        os.pwrite(fd, bytes(size), offset)
    os.pread(fd, 2000, 100)
    os.fdatasync(fd)
    os.fsync(fd)
    os.close(fd)


def read_whole(path):
    """As loaders read: until nothing comes."""
    fd = os.open(path, os.O_RDONLY)
    size = 0
    while got := len(os.read(fd, CHUNK)):
        size += got
    os.close(fd)
    return size


def worker(directory, number):
    size = sum(read_whole(directory / f"{n}.bin") for n in range(number, FILES, WORKERS))
    fd = os.open(directory / "shared.bin", os.O_RDONLY)
    size += len(os.pread(fd, 50, 100 * number)) + len(os.pread(fd, 7, 5000))
    os.close(fd)
    return size


def work(directory, notes):
    directory.mkdir()
    for number in range(FILES):
        (directory / f"{number}.bin").write_bytes(os.urandom(1000 * number + 5))
    (directory / "shared.bin").write_bytes(bytes(10_000))
    for name in ODD_NAMES:
        (directory / name).write_bytes(b"odd")
    known(directory / "known.bin")
    (directory / "ckpt.tmp").write_bytes(bytes(300_000))
    os.rename(directory / "ckpt.tmp", directory / "ckpt")
    (directory / "below").mkdir()
    os.listdir(directory)
    read = {}
    for number in range(WORKERS):
        tube, end = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(end, str(worker(directory, number)).encode())
            os._exit(0)
        os.close(end)
        read[pid] = int(os.read(tube, 100))
        os.close(tube)
        expect(os.waitpid(pid, 0)[1] == 0, "a worker failed")
    (notes / "workers.json").write_text(json.dumps(read))


def table(mount):
    """Rows of `.dlio/files.tsv` by name."""
    lines = [line.split("\t") for line in (mount / ".dlio/files.tsv").read_text().splitlines()]
    return {line[0]: dict(zip(lines[0], line)) for line in lines[1:] if line[0] != "/"}


def traced_and_counted(path):
    log = Log(path)
    counted = sum(int(file["READS"] + file["WRITES"]) for file in log.files.values())
    return int(log.job["metadata"]["dxt_calls"]), counted


def record(mount, notes):
    """Keeps a recording, once every call has reached the trace, and what the mount's own table says at the time."""
    recording, log = notes / "run.dlio", notes / "run.darshan"

    def kept():
        before = table(mount)
        recording.write_bytes((mount / ".dlio/recording").read_bytes())
        report(recording, "darshan", log)
        traced, counted = traced_and_counted(log)
        expect(traced <= counted, f"{traced} calls are traced, {counted} counted")
        return traced == counted and before == table(mount)

    until("the trace to have every call", kept)
    (notes / "files.json").write_text(json.dumps(table(mount)))
    report(recording, "json", notes / "run.json")


def control(mount, command):
    fd = os.open(mount / ".dlio/control", os.O_RDWR)
    os.write(fd, f"{command}\n".encode())
    reply = os.pread(fd, 1000, 0).decode()
    os.close(fd)
    expect(reply.startswith("ok"), f"{command}: {reply}")


def record_window(mount, directory, notes):
    control(mount, "window start pass")
    size = read_whole(directory / "7.bin") + read_whole(directory / "8.bin")
    control(mount, "window stop")
    expect(size == 15_010, f"{size} bytes")

    def kept():
        report(mount, "darshan", notes / "window.darshan", "--window", "pass")
        traced, counted = traced_and_counted(notes / "window.darshan")
        return traced == counted

    until("the trace to have every call of the window", kept)


def write(directory, notes):
    mount = directory.parent
    check("darshan: files are written, and read by workers", work, directory, notes)
    check("darshan: what was observed is recorded", record, mount, notes)
    check("darshan: and a window", record_window, mount, directory, notes)


# What the log says


class Log:
    """A log as PyDarshan reads it: counters by the name of the file."""

    def __init__(self, path):
        self.report = darshan.DarshanReport(str(path))
        self.names = self.report.name_records
        self.ranks, self.files = {}, {}
        for entry in self.report.records.get("POSIX", []):
            name = self.names[entry["id"]]
            expect(name not in self.files, f"{name} has two records")
            posix = self.report.counters["POSIX"]
            pairs = [*zip(posix["counters"], entry["counters"]), *zip(posix["fcounters"], entry["fcounters"])]
            self.files[name] = {counter.removeprefix("POSIX_"): value for counter, value in pairs}
            self.ranks[name] = entry["rank"]
        self.traced = list(self.report.records.get("DXT_POSIX", []))
        self.job = self.report.metadata["job"]


def common(cell):
    """The four commonest, of which the larger goes first."""
    pairs = [tuple(map(int, pair.split(":"))) for pair in cell.split(",") if pair]
    pairs = sorted(pairs, key=lambda pair: (-pair[1], -pair[0]))[:4]
    return pairs + [(0, 0)] * (4 - len(pairs))


def expected(row):
    """Darshan's counters of a row of the mount's own table; all but the mode, which is not in it."""
    n = {name: int(cell) for name, cell in row.items() if re.fullmatch(r"\d+", cell)}
    wanted = {
        "OPENS": n["open"] + n["create"], "READS": n["read"], "WRITES": n["write"], "STATS": n["getattr"],
        "FSYNCS": n["fsync"], "FDSYNCS": n["fdatasync"], "RENAMED_FROM": 0,
        "BYTES_READ": n["bytes_read"], "BYTES_WRITTEN": n["bytes_written"],
        "MAX_BYTE_READ": max(n["end_read"] - 1, 0), "MAX_BYTE_WRITTEN": max(n["end_written"] - 1, 0),
        "CONSEC_READS": n["consec_reads"], "CONSEC_WRITES": n["consec_writes"],
        "SEQ_READS": n["seq_reads"], "SEQ_WRITES": n["seq_writes"], "RW_SWITCHES": n["switches"],
        "FILE_NOT_ALIGNED": n["unaligned"], "FILE_ALIGNMENT": 4096,
        "MAX_READ_TIME_SIZE": n["slowest_read_bytes"], "MAX_WRITE_TIME_SIZE": n["slowest_write_bytes"],
        "F_READ_TIME": n["read_ns"] / 1e9, "F_WRITE_TIME": n["write_ns"] / 1e9, "F_META_TIME": n["meta_ns"] / 1e9,
        "F_MAX_READ_TIME": n["slowest_read_ns"] / 1e9, "F_MAX_WRITE_TIME": n["slowest_write_ns"] / 1e9,
        "F_SLOWEST_RANK_TIME": (n["read_ns"] + n["write_ns"] + n["meta_ns"]) / 1e9,
    }
    wanted |= {f"SIZE_READ_{size}": n[f"reads_{size}"] for size in SIZES}
    wanted |= {f"SIZE_WRITE_{size}": n[f"writes_{size}"] for size in SIZES}
    for what, cell in (("STRIDE", row["strides"]), ("ACCESS", row["sizes"])):
        for at, (value, times) in enumerate(common(cell), 1):
            wanted |= {f"{what}{at}_{what}": value, f"{what}{at}_COUNT": times}
    for what in ("OPEN", "READ", "WRITE", "CLOSE"):
        for end, column in (("START", "first"), ("END", "last")):
            wanted[f"F_{what}_{end}_TIMESTAMP"] = n.get(f"{what.lower()}_{column}_us", 0) / 1e6
    return wanted | dict.fromkeys(UNKNOWN + UNKNOWN_RANKS + UNKNOWN_TIMES, -1)


def rows_by_name(mount, notes):
    """The rows of files that Darshan would have met, by the names that a log has for them."""
    rows = {}
    for path, row in json.loads((notes / "files.json").read_text()).items():
        plain = urllib.parse.unquote(path)
        if any(int(row[op]) for op in ("open", "create", "getattr")) and path not in ("/darshan", "/darshan/below"):
            rows[f"{mount}{path if chr(10) in plain else plain}"] = row
    return rows


def counters_are_those_of_the_mount(log, rows):
    expect(set(log.files) == set(rows), f"files differ: {set(log.files) ^ set(rows)}")
    compared = 0
    for name, row in rows.items():
        found, wanted = dict(log.files[name]), expected(row)
        mode = found.pop("MODE")
        expect(mode == (0o640 if name.endswith("known.bin") else 0o666), f"{name}: mode {mode:o}")
        expect(set(found) == set(wanted), f"counters differ: {set(found) ^ set(wanted)}")
        for counter, value in wanted.items():
            expect(abs(found[counter] - value) < 1e-9, f"{name}: {counter} is {found[counter]}, not {value}")
            compared += 1
    expect(compared >= (FILES + 6) * 85, f"only {compared} counters")


def counters_are_what_was_done(log, directory):
    found = log.files[f"{directory}/known.bin"]
    for counter, value in found.items():
        if not counter.startswith("F_") and counter not in UNKNOWN + UNKNOWN_RANKS + NOT_GIVEN:
            expect(value == KNOWN.get(counter, 0), f"{counter} is {value}")
    for number in range(FILES):
        found = log.files[f"{directory}/{number}.bin"]
        size = 1000 * number + 5
        reads = -(-size // CHUNK) + 1
        wanted = {"OPENS": 2, "READS": reads, "BYTES_READ": size, "MAX_BYTE_READ": size - 1, "CONSEC_READS": reads - 1}
        for counter, value in wanted.items():
            expect(found[counter] == value, f"{number}.bin: {counter} is {found[counter]}, not {value}")
    shared = log.files[f"{directory}/shared.bin"]
    expect((shared["OPENS"], shared["READS"], shared["BYTES_READ"]) == (4, 6, 171), str(shared))


def ranks_are_processes(log, directory, notes):
    numbers = sorted(process["number"] for process in json.loads((notes / "run.json").read_text())["workers"])
    expect(log.job["nprocs"] == len(numbers), f"{log.job['nprocs']} processes, not {numbers}")
    by_rank = dict.fromkeys(range(len(numbers)), 0)
    for entry in log.traced:
        by_rank[entry["rank"]] += sum(segment["length"] for segment in entry["read_segments"])
    for pid, size in json.loads((notes / "workers.json").read_text()).items():
        rank = next(int(key[5:]) for key, value in log.job["metadata"].items() if value.split()[1:] == [pid])
        expect(by_rank[rank] == size, f"process {pid} read {size} bytes, rank {rank} {by_rank[rank]}")
    # Written by one process, read by another.
    expect(log.ranks[f"{directory}/1.bin"] == -1, "a file of two processes is shared")
    expect(log.ranks[f"{directory}/known.bin"] in by_rank, "a file of one process is its own")


def calls_are_all_traced(log):
    found = {name: [0, 0, 0, 0] for name in log.files}
    for entry in log.traced:
        sums = found[log.names[entry["id"]]]
        for at, way in ((0, "read"), (2, "write")):
            segments = entry[f"{way}_segments"]
            expect(len(segments) == entry[f"{way}_count"], "as many segments as are announced")
            starts = [segment["start_time"] for segment in segments]
            expect(starts == sorted(starts), "segments are in order")
            expect(all(0 <= s["start_time"] <= s["end_time"] <= log.job["run_time"] + 1e-3 for s in segments), "times")
            sums[at] += len(segments)
            sums[at + 1] += sum(segment["length"] for segment in segments)
    for name, sums in found.items():
        wanted = [int(log.files[name][counter]) for counter in ("READS", "BYTES_READ", "WRITES", "BYTES_WRITTEN")]
        expect(sums == wanted, f"{name}: {sums} traced, {wanted} counted")
    expect(not any(module["partial_flag"] for module in log.report.modules.values()), "nothing is missing")


def heat_map_has_every_byte(log):
    heat = log.report.heatmaps["POSIX"]
    for way, counter in (("read", "BYTES_READ"), ("write", "BYTES_WRITTEN")):
        rows = heat.to_df([way]).sum(axis=1)
        expect(rows.sum() == sum(file[counter] for file in log.files.values()), f"{counter}: {rows}")
        for rank, size in rows.items():
            traced = sum(s["length"] for entry in log.traced if entry["rank"] == rank for s in entry[f"{way}_segments"])
            expect(size == traced, f"rank {rank}: {size} bytes in the map, {traced} traced")


def job_is_the_mount(log, mount):
    about = log.job["metadata"]
    expect(about["io_path"] == "exact" and about["trace_dropped"] == "0", str(about))
    expect(log.report.mounts == [(str(mount), "fuse.dlio")], str(log.report.mounts))
    expect(log.report.metadata["exe"].startswith(f"dlio-fs mount {mount} "), log.report.metadata["exe"])


def darshans_functions_print_the_same(log, mount, notes):
    """Each counter of each record, and all bytes of the heat map."""
    command = [sys.executable, "-c", PRINTER, str(notes / "run.darshan"), str(mount)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found, moved = {}, 0
    for module, _, _, counter, value, name, *_ in (line.split("\t") for line in printed):
        if module == "POSIX":
            found.setdefault(name, {})[counter.removeprefix("POSIX_")] = float(value)
        elif "_BIN_" in counter and not counter.endswith("_SECONDS"):
            moved += int(value)
    expect(set(found) == set(log.files), f"files differ: {set(found) ^ set(log.files)}")
    for name, counters in log.files.items():
        expect(set(found[name]) == set(counters), f"{name}: {set(found[name]) ^ set(counters)}")
        different = [c for c, value in counters.items() if abs(found[name][c] - value) > 1e-6]
        expect(not different, f"{name}: {different}")
    expect(moved == sum(file["BYTES_READ"] + file["BYTES_WRITTEN"] for file in log.files.values()), f"{moved} bytes")


def window_is_by_itself(log, directory):
    found = {name: (f["OPENS"], f["BYTES_READ"], f["BYTES_WRITTEN"]) for name, f in log.files.items() if f["OPENS"]}
    expect(found == {f"{directory}/7.bin": (1, 7005, 0), f"{directory}/8.bin": (1, 8005, 0)}, str(found))
    expect(sum(len(entry["read_segments"]) for entry in log.traced) == 6, "the window's reads")
    expect(log.job["metadata"]["window"] == "pass", str(log.job))
    for file in log.files.values():
        expect(file["F_READ_END_TIMESTAMP"] <= log.job["run_time"] + 1e-3, "its time is the window's")


def renders(path):
    """`darshan summary`, as users call it; the text of its page, without tags."""
    output = path.with_suffix(".html")
    command = [sys.executable, "-m", "darshan", "summary", str(path), "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True)
    expect(result.returncode == 0, result.stderr)
    page = output.read_text()
    text = re.sub(r"<style.*?</style>|<[^>]+>", " ", re.sub(r"<img[^>]*>", " FIGURE ", page), flags=re.S)
    return re.sub(r"\s+", " ", text)


def summary_shows_all_sections(log, notes):
    text = renders(notes / "run.darshan")
    sections = ("Heat Map: HEATMAP POSIX FIGURE", "I/O Cost FIGURE", "Per-Module Statistics: POSIX", "File Count Summary",
                "Access Pattern FIGURE", "Access Sizes FIGURE", "Common Access Sizes", "Operation Counts FIGURE")
    for section in sections:
        expect(section in text, f"no {section}: {text}")
    expect(f"files accessed {len(log.files)} " in text, text)


def what_is_left_of_a_cut_recording_is_read(notes):
    whole = (notes / "run.dlio").read_bytes()
    log = notes / "cut.darshan"
    (notes / "cut.dlio").write_bytes(whole[: len(whole) // 2])
    command = [os.environ["DLIO_FS"], "report", str(notes / "cut.dlio"), "--format", "darshan", "--output", str(log)]
    result = subprocess.run(command, capture_output=True, text=True)
    expect(result.returncode == 0 and "cut off" in result.stderr, result.stderr)
    found = Log(log)
    expect(found.job["metadata"]["recording"].startswith("cut off"), str(found.job))
    renders(log)


def verify(directory, notes):
    mount = directory.parent
    log = Log(notes / "run.darshan")
    check("darshan: every counter is that of the mount's table", counters_are_those_of_the_mount, log, rows_by_name(mount, notes))
    check("darshan: and what was done", counters_are_what_was_done, log, directory)
    check("darshan: ranks are processes", ranks_are_processes, log, directory, notes)
    check("darshan: every read and write is traced", calls_are_all_traced, log)
    check("darshan: the heat map has every byte", heat_map_has_every_byte, log)
    check("darshan: the job is the mount", job_is_the_mount, log, mount)
    check("darshan: Darshan's own functions print the same", darshans_functions_print_the_same, log, mount, notes)
    check("darshan: a window is by itself", window_is_by_itself, Log(notes / "window.darshan"), directory)
    check("darshan: a cut recording is read", what_is_left_of_a_cut_recording_is_read, notes)
    check("darshan: the summary is rendered", summary_shows_all_sections, log, notes)


main(write, verify)
