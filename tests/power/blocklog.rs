//! The disks beneath both tiers, which write down everything they are told, in one order.
//!
//! A FUSE file system with two files, each to be the backing file of a loop device: the kernel's own disk driver sends every
//! write, flush and discard of a file system through here. It is served by a process of its own. Were it the test, a thread of
//! the test that waits for a disk could wait for itself, and then nothing but a reboot would end it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use parking_lot::Mutex;

use super::rig::until;
use super::states::{Disk, FAST, Record, SLOW, What};
use super::traffic::now;

/// Names a directory: this process is to serve the disks in it.
const SERVE: &str = "POWER_BLOCKLOG";
const NAMES: [&str; 2] = ["fast", "slow"];
const TTL: Duration = Duration::from_secs(3600);
/// stamp, offset and length of the bytes that follow, disk, and whether it is a write.
const HEADER: usize = 8 + 8 + 4 + 1 + 1;

/// Two disks that are being served.
#[derive(Debug)]
pub(crate) struct BlockLog {
    dir: PathBuf,
    server: Child,
}

impl BlockLog {
    /// Takes `disks` as they are into images in `dir`, each of this many bytes, and serves them.
    pub(crate) fn start(dir: &Path, disks: &[Disk; 2], bytes: [u64; 2]) -> Self {
        fs::create_dir_all(dir.join("disks")).unwrap();
        for disk in [FAST, SLOW] {
            write_image(&dir.join(NAMES[disk]), &disks[disk], bytes[disk]);
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "serve_the_disks", "--ignored", "--nocapture"]).env(SERVE, dir);
        // It ends when this end of the pipe is closed, whatever ends the test.
        let server = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let log = BlockLog { dir: dir.to_owned(), server };
        until("the disks are served", || log.disk(SLOW).exists());
        log
    }

    /// For a loop device to stand on.
    pub(crate) fn disk(&self, disk: usize) -> PathBuf {
        self.dir.join("disks").join(NAMES[disk])
    }

    /// Everything they were told. Nothing may be mounted on them any more.
    pub(crate) fn finish(mut self) -> Vec<Record> {
        self.end();
        let records = read_log(&fs::read(self.dir.join("log")).unwrap());
        fs::remove_dir_all(&self.dir).unwrap();
        records
    }

    fn end(&mut self) {
        // What is unmounted lets go of its device, but a device stands until the last who has it open closes it: another
        // `mount` opens them all when it looks for one that is free.
        until("no device stands on the disks", || !self.has_devices());
        drop(self.server.stdin.take());
        let status = self.server.wait().unwrap();
        assert!(status.success(), "the process that serves the disks: {status}");
    }

    fn has_devices(&self) -> bool {
        let stands_here = |device: io::Result<fs::DirEntry>| {
            let backing = fs::read_to_string(device.unwrap().path().join("loop/backing_file"));
            backing.is_ok_and(|path| Path::new(path.trim_end()).starts_with(&self.dir))
        };
        fs::read_dir("/sys/block").unwrap().any(stands_here)
    }
}

impl Drop for BlockLog {
    fn drop(&mut self) {
        // Ended already, or the test has failed: then a disk that is gone fails every call, and nothing waits for it.
        self.server.kill().unwrap_or_default();
        self.server.wait().map(drop).unwrap_or_default();
    }
}

/// A sparse file with the disk's bytes.
pub(crate) fn write_image(path: &Path, disk: &Disk, bytes: u64) {
    let image = File::create(path).unwrap();
    image.set_len(bytes).unwrap();
    disk.pieces().for_each(|(offset, piece)| image.write_all_at(piece, offset).unwrap());
}

/// The bytes of an image.
pub(crate) fn read_image(path: &Path) -> Disk {
    const PIECE: usize = 64 << 10;
    let (mut image, mut disk, mut piece) = (File::open(path).unwrap(), Disk::default(), vec![0; PIECE]);
    for offset in (0..image.metadata().unwrap().len()).step_by(PIECE) {
        image.read_exact(&mut piece).unwrap();
        if piece.iter().any(|byte| *byte != 0) {
            disk.write(offset, &piece);
        }
    }
    disk
}

fn read_log(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some((header, rest)) = bytes.split_at_checked(HEADER) {
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
        let len = u32::from_le_bytes(header[16..20].try_into().unwrap());
        let (data, rest) = rest.split_at(len as usize);
        let what = match header[21] {
            1 => What::Write { offset: number(8), bytes: data.to_vec() },
            _ => What::Flush,
        };
        records.push(Record { disk: usize::from(header[20]), stamp: number(0), what });
        bytes = rest;
    }
    records
}

/// The other process. Returns at once where nobody has asked for it.
pub(crate) fn serve() {
    let Some(dir) = std::env::var_os(SERVE).map(PathBuf::from) else { return };
    let open = |name: &str| File::options().read(true).write(true).open(dir.join(name)).unwrap();
    let images = NAMES.map(open);
    let sizes = [FAST, SLOW].map(|disk| images[disk].metadata().unwrap().len());
    let log = Arc::new(Mutex::new(BufWriter::with_capacity(1 << 20, File::create(dir.join("log")).unwrap())));
    let disks = Disks { images, sizes, log: log.clone() };
    let session = fuser::spawn_mount(disks, dir.join("disks"), &fuser::Config::default()).unwrap();
    // Until the other end is closed.
    io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
    session.umount_and_join().unwrap();
    log.lock().flush().unwrap();
}

struct Disks {
    images: [File; 2],
    sizes: [u64; 2],
    log: Arc<Mutex<BufWriter<File>>>,
}

impl Disks {
    /// Written down in the order of the stamps, and before the answer: what the other side knows of has been.
    fn note(&self, disk: usize, offset: u64, bytes: Option<&[u8]>) -> io::Result<()> {
        let mut log = self.log.lock();
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&now().to_le_bytes());
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        header[16..20].copy_from_slice(&(bytes.map_or(0, <[u8]>::len) as u32).to_le_bytes());
        header[20] = disk as u8;
        header[21] = u8::from(bytes.is_some());
        log.write_all(&header)?;
        log.write_all(bytes.unwrap_or_default())
    }

    fn put(&self, disk: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.note(disk, offset, Some(bytes))?;
        self.images[disk].write_all_at(bytes, offset)
    }

    /// Inodes: 1 is the directory, then the disks.
    fn disk(ino: INodeNo) -> Option<usize> {
        [FAST, SLOW].into_iter().find(|disk| *disk as u64 + 2 == u64::from(ino))
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let disk = Self::disk(ino);
        let size = disk.map_or(0, |disk| self.sizes[disk]);
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if disk.is_some() { FileType::RegularFile } else { FileType::Directory },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

fn or_error(result: io::Result<()>) -> Result<(), Errno> {
    result.map_err(|_| Errno::EIO)
}

impl Filesystem for Disks {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match NAMES.iter().position(|known| name == *known) {
            Some(disk) => reply.entry(&TTL, &self.attr(INodeNo(disk as u64 + 2)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No cache between the loop device and us: what it writes it writes here, now.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(disk) = Self::disk(ino) else { return reply.error(Errno::EISDIR) };
        let len = self.sizes[disk].saturating_sub(offset).min(u64::from(size));
        let mut bytes = vec![0; len as usize];
        match self.images[disk].read_exact_at(&mut bytes, offset) {
            Ok(()) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(disk) = Self::disk(ino) else { return reply.error(Errno::EISDIR) };
        match or_error(self.put(disk, offset, data)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let Some(disk) = Self::disk(ino) else { return reply.ok() };
        match or_error(self.note(disk, 0, None)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    /// A discard, or a request for zeros: a write of zeros.
    fn fallocate(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, length: u64, _: i32, reply: ReplyEmpty) {
        const PIECE: u64 = 1 << 20;
        let Some(disk) = Self::disk(ino) else { return reply.error(Errno::EISDIR) };
        let end = offset + length;
        let mut pieces = (offset..end).step_by(PIECE as usize);
        let zeros = vec![0; PIECE as usize];
        match or_error(pieces.try_for_each(|at| self.put(disk, at, &zeros[..(end - at).min(PIECE) as usize]))) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

#[test]
fn a_log_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let image =
        |name: &str| File::options().read(true).write(true).create(true).truncate(true).open(dir.path().join(name));
    let images = NAMES.map(|name| image(name).unwrap());
    let log = Arc::new(Mutex::new(BufWriter::new(File::create(dir.path().join("log")).unwrap())));
    let disks = Disks { images, sizes: [4096; 2], log };
    disks.put(SLOW, 512, &[7; 1000]).unwrap();
    disks.note(FAST, 0, None).unwrap();
    disks.log.lock().flush().unwrap();
    let records = read_log(&fs::read(dir.path().join("log")).unwrap());
    let [Record { disk: SLOW, stamp: first, what: What::Write { offset: 512, bytes } }, second] = &records[..] else {
        panic!("{records:?}");
    };
    assert_eq!(*bytes, [7; 1000]);
    assert!(matches!(second, Record { disk: FAST, what: What::Flush, stamp } if stamp >= first), "{second:?}");
    let image = fs::read(dir.path().join("slow")).unwrap();
    assert_eq!(image, [vec![0; 512], vec![7; 1000]].concat());
}
