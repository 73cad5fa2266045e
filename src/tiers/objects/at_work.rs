//! The processes whose work on a file's bytes is not complete. Pure.
//!
//! A version is *complete* when every process that created, truncated or wrote the file has closed or fsynced it since
//! its last write. A close by another process says nothing: a process forked while a file is half written closes its
//! copies of all descriptors. While a file has no complete version yet, every process that opens it for writing counts
//! as one that creates it: two ranks that write their halves of one file.
//!
//! Processes are numbers, as in [`Cx::by`](crate::tiers::Cx::by).

/// The processes whose work is not complete; usually one.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Vec<WorkOf>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkOf {
    process: u32,
    /// `false`: it has only created, truncated or opened the file.
    wrote: bool,
}

impl AtWork {
    /// The process creates, truncates or (`wrote`) writes the file.
    pub(crate) fn begin(&mut self, process: u32, wrote: bool) {
        match self.0.iter_mut().find(|writer| writer.process == process) {
            Some(writer) => writer.wrote |= wrote,
            None => self.0.push(WorkOf { process, wrote }),
        }
    }

    /// The process has closed or fsynced the file.
    pub(crate) fn end(&mut self, process: u32) {
        self.0.retain(|writer| writer.process != process);
    }

    /// No process has the file open for writing any more.
    pub(crate) fn end_all(&mut self) {
        self.0.clear();
    }

    /// Whether the process has written; `None` if its work is complete, or it never did anything.
    pub(crate) fn wrote(&self, process: u32) -> Option<bool> {
        self.0.iter().find(|writer| writer.process == process).map(|writer| writer.wrote)
    }

    pub(crate) fn anyone_wrote(&self) -> bool {
        self.0.iter().any(|writer| writer.wrote)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_complete_once_each_process_has_ended_after_its_last_write() {
        let mut at_work = AtWork::default();
        at_work.begin(1, false);
        assert_eq!((at_work.wrote(1), at_work.wrote(2), at_work.anyone_wrote()), (Some(false), None, false));
        at_work.begin(2, true);
        at_work.begin(2, false);
        assert_eq!((at_work.wrote(2), at_work.anyone_wrote()), (Some(true), true), "a truncation undoes no write");
        // A process that did nothing.
        at_work.end(3);
        at_work.end(2);
        assert!(!at_work.is_empty());
        at_work.begin(2, true);
        at_work.end(1);
        assert!(!at_work.is_empty(), "it has written again");
        at_work.end(2);
        assert!(at_work.is_empty());
    }
}
