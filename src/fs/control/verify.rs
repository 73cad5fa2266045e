//! `verify`: comparing the two copies of clean files, one by one.

use std::time::Instant;

use super::clean::CleanFiles;
use super::session::{Reply, Running};
use super::{Asker, Control, path_of};
use crate::error::{Error, Result};
use crate::path::Name;
use crate::stats::render;
use crate::tiers::{Bad, Cx, Ino, Tiers, Verified, Verifying};

#[derive(Debug)]
struct Verification {
    clean: CleanFiles,
    /// The one that is being compared.
    current: Option<(Ino, Verifying)>,
    files: u64,
    bytes: u64,
    bad: u64,
    /// Files that only the fast tier has, that changed meanwhile, or that somebody else changed on the slow tier.
    not_compared: u64,
}

/// The files are compared while the reply is read.
pub(super) fn begin(control: &Control, asker: &Asker, names: Vec<Name>) -> Result<Reply, String> {
    let below = control.find(&names)?;
    let not_compared = control.tiers.evictable(below, 0).dirty_files;
    let (clean, current) = (CleanFiles::below(control, asker, below, &names), None);
    let verification = Verification { clean, current, files: 0, bytes: 0, bad: 0, not_compared };
    Ok(Reply::runs(String::new(), verification))
}

impl Running for Verification {
    fn go_on(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
        if !self.clean.find(control, "verifying", until, lines)? {
            return Ok(None);
        }
        while let Some((ino, current)) = self.next() {
            let done = match control.on_slow(move |tiers, cx| compare(tiers, cx, ino, current)) {
                Err(Error::SlowTimeout) => return Err("the slow tier does not answer".to_owned()),
                done => done,
            };
            if let Ok((Verified::More, file)) = done {
                self.current = file.map(|file| (ino, file));
            } else {
                let path = path_of(&control.tiers, ino).unwrap_or_else(|| format!("removed file {ino}"));
                lines.push_str(&self.take(&path, done));
            }
            if Instant::now() >= until {
                lines.push_str(&self.progress());
                return Ok(None);
            }
        }
        Ok(Some(self.verdict()))
    }
}

/// Some more of a file, or its beginning.
fn compare(tiers: &Tiers, cx: &Cx, ino: Ino, file: Option<Verifying>) -> Result<(Verified, Option<Verifying>)> {
    let mut file = match file.map_or_else(|| tiers.begin_verify(cx, ino), |file| Ok(Ok(file)))? {
        Ok(file) => file,
        Err(not_clean) => return Ok((not_clean, None)),
    };
    Ok((tiers.verify_some(cx, &mut file)?, Some(file)))
}

impl Verification {
    /// The file to go on with, and how far it is compared.
    fn next(&mut self) -> Option<(Ino, Option<Verifying>)> {
        match self.current.take() {
            Some((ino, file)) => Some((ino, Some(file))),
            None => Some((self.clean.next()?, None)),
        }
    }

    /// What came of a file; its line, if it needs one.
    fn take(&mut self, path: &str, done: Result<(Verified, Option<Verifying>)>) -> String {
        let read = |file: &Option<Verifying>| file.as_ref().map_or(0, |file| file.progress().0);
        match done {
            Ok((Verified::Same, file)) => {
                (self.files, self.bytes) = (self.files + 1, self.bytes + read(&file));
                String::new()
            }
            Ok((Verified::Differs { bad, at }, file)) => {
                (self.files, self.bytes, self.bad) = (self.files + 1, self.bytes + read(&file), self.bad + 1);
                let (which, remedy) = match bad {
                    Bad::Fast => ("fast", "the slow copy is good: evict the file"),
                    Bad::Slow => ("slow", "the fast copy is good: copy the file, and move the copy into its place"),
                    Bad::Both => ("both", "neither copy is what was written: restore it from elsewhere"),
                    Bad::Unknown => ("differ", "no hash says which copy is good: compare them"),
                };
                format!("{which}: {path} is damaged at byte {at}; {remedy}\n")
            }
            Ok((Verified::Changed, _)) => {
                self.not_compared += 1;
                format!("changed: {path} was changed on the slow tier by somebody else\n")
            }
            Ok(_) => {
                self.not_compared += 1;
                String::new()
            }
            Err(error) => {
                self.bad += 1;
                format!("unreadable: {path}: {error}\n")
            }
        }
    }

    fn progress(&self) -> String {
        let files = render::count(self.files, "file");
        let more =
            self.current.as_ref().map(|(_, file)| file.progress()).map_or(String::new(), |(at, of)| {
                format!(", {} of {} of the next", render::bytes(at), render::bytes(of))
            });
        let (bytes, to_go) = (render::bytes(self.bytes), self.clean.to_go());
        format!("verifying: {files} compared, {bytes}{more}, {to_go} to go\n")
    }

    fn verdict(&self) -> String {
        let Verification { files, bytes, bad, not_compared, .. } = self;
        let (files, bytes) = (render::count(*files, "file"), render::bytes(*bytes));
        format!("{files} compared, {bytes}: {bad} damaged; {not_compared} not compared")
    }
}
