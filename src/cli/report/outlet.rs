//! Where a document goes: standard output, a file, numbered files, or a directory of tables.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::report::Outlet;

/// The outlet of a document. A file whose name ends in `.gz` is compressed.
#[derive(Debug)]
pub(super) struct FileOutlet {
    /// `None`: standard output.
    path: Option<PathBuf>,
    is_dir: bool,
    /// Finished parts.
    parts: u32,
    part: PartFile,
}

#[derive(Debug)]
enum PartFile {
    /// Nothing was written yet, and no file exists.
    None,
    Stdout(BufWriter<io::Stdout>),
    Plain(BufWriter<File>),
    Packed(GzEncoder<BufWriter<File>>),
}

impl FileOutlet {
    /// `is_dir`: the tables go into a directory of that name.
    pub(super) fn new(path: Option<&Path>, is_dir: bool) -> Self {
        FileOutlet { path: path.map(Path::to_path_buf), is_dir, parts: 0, part: PartFile::None }
    }

    /// Ends the document.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.end_part()
    }

    fn end_part(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.part, PartFile::None) {
            PartFile::None => Ok(()),
            PartFile::Stdout(mut out) => out.flush(),
            PartFile::Plain(mut out) => out.flush(),
            PartFile::Packed(out) => out.finish()?.flush(),
        }
    }

    fn create(&mut self, path: &Path) -> io::Result<()> {
        let out = BufWriter::with_capacity(1 << 18, File::create(path)?);
        self.part = match path.extension().is_some_and(|extension| extension == "gz") {
            true => PartFile::Packed(GzEncoder::new(out, Compression::fast())),
            false => PartFile::Plain(out),
        };
        Ok(())
    }

    /// The current part.
    fn part(&mut self) -> io::Result<&mut dyn Write> {
        if matches!(self.part, PartFile::None) {
            match self.path.clone() {
                None => self.part = PartFile::Stdout(BufWriter::new(io::stdout())),
                Some(path) => self.create(&path)?,
            }
        }
        Ok(match &mut self.part {
            PartFile::None => unreachable!("it was begun"),
            PartFile::Stdout(out) => out,
            PartFile::Plain(out) => out,
            PartFile::Packed(out) => out,
        })
    }
}

impl Write for FileOutlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part()?.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.part()?.flush()
    }
}

impl Outlet for FileOutlet {
    /// `run.json` becomes `run-0.json`, and `run-1.json` follows it.
    fn next(&mut self) -> io::Result<()> {
        let Some(path) = self.path.clone() else {
            return Err(io::Error::other(
                "it is longer than one part, and standard output takes only one: name a file with --output",
            ));
        };
        self.end_part()?;
        if self.parts == 0 {
            fs::rename(&path, numbered(&path, 0))?;
        }
        self.parts += 1;
        self.create(&numbered(&path, self.parts))
    }

    fn table(&mut self, name: &str) -> io::Result<()> {
        let Some(dir) = self.path.clone().filter(|_| self.is_dir) else {
            return Err(io::Error::other("there are several tables: name a directory with --output"));
        };
        self.end_part()?;
        fs::create_dir_all(&dir)?;
        self.create(&dir.join(name).with_extension("parquet"))
    }
}

/// `run.json.gz` and 3: `run-3.json.gz`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, extensions) = match name.find('.').filter(|at| *at > 0) {
        Some(at) => name.split_at(at),
        None => (&*name, ""),
    };
    path.with_file_name(format!("{stem}-{number}{extensions}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn parts_are_numbered_and_compressed_by_their_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run.json.gz");
        let mut out = FileOutlet::new(Some(&path), false);
        out.write_all(b"one").expect("written");
        out.next().expect("another");
        out.write_all(b"two").expect("written");
        out.end().expect("ended");
        let read = |name: &str| {
            let mut text = String::new();
            let file = File::open(dir.path().join(name)).expect(name);
            flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
            text
        };
        assert_eq!((read("run-0.json.gz"), read("run-1.json.gz")), ("one".into(), "two".into()));
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_made_before_anything_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run.json");
        FileOutlet::new(Some(&path), false).end().expect("ended");
        assert!(!path.exists());
        assert!(FileOutlet::new(Some(&path), false).table("files").is_err(), "no directory was asked for");
        assert!(FileOutlet::new(None, false).next().expect_err("one").to_string().contains("--output"));
    }

    #[test]
    fn a_number_stands_before_the_extensions() {
        let name = |path: &str| numbered(Path::new(path), 2).display().to_string();
        assert_eq!(
            (name("/a.b/run.json"), name("run"), name(".x")),
            ("/a.b/run-2.json".into(), "run-2".into(), ".x-2".into())
        );
    }
}
