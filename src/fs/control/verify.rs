//! `verify`: comparing the two copies of clean files and of staged ones, one by one.

use std::time::Instant;

use super::asker::Asker;
use super::clean::{CleanFiles, StagedFiles};
use super::reply::{Reply, Running};
use super::sources::Control;
use crate::error::{Error, Result};
use crate::fs::shown::path_of;
use crate::path::{Name, escape};
use crate::stats::render;
use crate::tiers::{Bad, Cx, Ino, Tiers, Verified, Verifying};

/// Which fast copy to compare.
#[derive(Clone, Copy, Debug)]
enum VerifyTarget {
    Clean(Ino),
    /// By the number of its copy.
    Staged(u64),
}

impl VerifyTarget {
    fn path(self, tiers: &Tiers) -> String {
        match self {
            VerifyTarget::Clean(ino) => path_of(tiers, ino).unwrap_or_else(|| format!("removed file {ino}")),
            VerifyTarget::Staged(number) => match tiers.copy_path(number) {
                Some(path) => format!("/{}", escape(&path)),
                None => format!("staged copy {number}"),
            },
        }
    }
}

#[derive(Debug)]
struct Verification {
    clean: CleanFiles,
    staged: StagedFiles,
    /// The one being compared.
    current: Option<(VerifyTarget, Verifying)>,
    files: u64,
    bytes: u64,
    bad: u64,
    /// Files that only the fast tier has, that changed meanwhile, or that another program changed on the slow tier.
    not_compared: u64,
}

/// The files are compared while the reply is read.
pub(super) fn start(control: &Control, asker: &Asker, names: Vec<Name>) -> Result<Reply, String> {
    let below = control.find(&names)?;
    let not_compared = control.tiers.evictable(below, 0).dirty_files;
    let (clean, current) = (CleanFiles::below(control, asker, below, &names), None);
    let staged = StagedFiles::below(asker, &names);
    let verification = Verification { clean, staged, current, files: 0, bytes: 0, bad: 0, not_compared };
    Ok(Reply::runs(String::new(), verification))
}

impl Running for Verification {
    fn advance(&mut self, control: &Control, until: Instant, lines: &mut String) -> Result<Option<String>, String> {
        if !self.clean.find(control, "verifying", until, lines)? {
            return Ok(None);
        }
        if !self.staged.find(control, until).map_err(|error| error.to_string())? {
            lines.push_str("verifying: looking for staged copies of the mount before\n");
            return Ok(None);
        }
        while let Some((subject, current)) = self.next() {
            if self.is_asked_for(control, subject) {
                lines.push_str(&self.compare(control, subject, current)?);
            }
            if Instant::now() >= until {
                lines.push_str(&self.progress());
                return Ok(None);
            }
        }
        Ok(Some(self.verdict()))
    }
}

/// Compares some more of a file, or begins to.
fn compare(
    tiers: &Tiers,
    cx: &Cx,
    subject: VerifyTarget,
    file: Option<Verifying>,
) -> Result<(Verified, Option<Verifying>)> {
    let begun = match (file, subject) {
        (Some(file), _) => Ok(file),
        (None, VerifyTarget::Clean(ino)) => tiers.begin_verify(cx, ino)?,
        (None, VerifyTarget::Staged(number)) => tiers.begin_verify_staged(cx, number)?,
    };
    let mut file = match begun {
        Ok(file) => file,
        Err(not_clean) => return Ok((not_clean, None)),
    };
    Ok((tiers.verify_some(cx, &mut file)?, Some(file)))
}

impl Verification {
    /// The next file to compare, and its state if it is begun.
    fn next(&mut self) -> Option<(VerifyTarget, Option<Verifying>)> {
        if let Some((subject, file)) = self.current.take() {
            return Some((subject, Some(file)));
        }
        if let Some(ino) = self.clean.next() {
            return Some((VerifyTarget::Clean(ino), None));
        }
        Some((VerifyTarget::Staged(self.staged.next()?), None))
    }

    /// All staged copies are visited; finding their owner and path costs a lookup each.
    fn is_asked_for(&self, control: &Control, subject: VerifyTarget) -> bool {
        match subject {
            VerifyTarget::Clean(_) => true,
            VerifyTarget::Staged(number) => self.staged.has(control, number),
        }
    }

    /// Compares some more of a file; returns its line, if it needs one.
    fn compare(&mut self, control: &Control, subject: VerifyTarget, file: Option<Verifying>) -> Result<String, String> {
        match control.on_slow(move |tiers, cx| compare(tiers, cx, subject, file)) {
            Err(Error::SlowTimeout) => Err("the slow tier does not answer".to_owned()),
            Ok((Verified::More, file)) => {
                self.current = file.map(|file| (subject, file));
                Ok(String::new())
            }
            done => Ok(self.record(&subject.path(&control.tiers), done)),
        }
    }

    /// Takes the result of a file; returns its line, if it needs one.
    fn record(&mut self, path: &str, done: Result<(Verified, Option<Verifying>)>) -> String {
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
                    Bad::Both => ("both", "both copies are damaged: restore it from elsewhere"),
                    Bad::Staged => ("staged", "the slow file counts: evict the file, which deletes the staged copy"),
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
        let (bytes, to_go) = (render::bytes(self.bytes), self.clean.to_go() + self.staged.to_go());
        format!("verifying: {files} compared, {bytes}{more}, {to_go} to go\n")
    }

    fn verdict(&self) -> String {
        let Verification { files, bytes, bad, not_compared, .. } = self;
        let (files, bytes) = (render::count(*files, "file"), render::bytes(*bytes));
        format!("{files} compared, {bytes}: {bad} damaged; {not_compared} not compared")
    }
}
