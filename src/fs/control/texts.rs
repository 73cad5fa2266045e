//! The texts of the open files of `.dlio`: each is made at an open and exists once in memory, and their sum for all
//! users is bounded. A read at any offset sees the text that its open got.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::asker::Asker;
use super::node::VirtualNode;
use crate::error::Result;
use crate::fs::holdings::{Holdings, Share};

/// How many bytes of texts all users together may have open.
const TEXT_BYTES_MAX: u64 = 256 << 20;
/// A text at least this large is shared by all users with equal rights who open it within a moment.
const LARGE: usize = 1 << 20;
const MOMENT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Text {
    number: u64,
    bytes: Vec<u8>,
}

/// A text, and its reader's share in the common memory.
#[derive(Debug)]
pub(super) struct OpenText {
    text: Arc<Text>,
    _share: Option<Share>,
}

impl OpenText {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.text.bytes
    }
}

/// The texts that are open.
#[derive(Debug)]
pub(super) struct Texts {
    held: Holdings,
    next: AtomicU64,
    large: Mutex<Vec<LargeText>>,
}

#[derive(Debug)]
struct LargeText {
    node: VirtualNode,
    asker: Asker,
    at: Instant,
    text: Weak<Text>,
}

impl Texts {
    pub(super) fn new(owner: u32) -> Self {
        let what = ("open one more file of .dlio for", "bytes of texts that are open");
        let held = Holdings::of_bytes(what, TEXT_BYTES_MAX, owner);
        Texts { held, next: AtomicU64::default(), large: Mutex::default() }
    }

    /// The text of a file, which `render` makes unless it was made a moment ago. ENFILE if the user has too many open.
    pub(super) fn open(
        &self,
        node: VirtualNode,
        asker: &Asker,
        render: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<OpenText> {
        let text = match self.recent(node, asker) {
            Some(text) => text,
            None => {
                self.held.expect_one_for(asker.uid())?;
                self.keep(node, asker, render()?)
            }
        };
        let _share = self.held.take_bytes(asker.uid(), text.number, text.bytes.len());
        Ok(OpenText { text, _share })
    }

    fn keep(&self, node: VirtualNode, asker: &Asker, bytes: Vec<u8>) -> Arc<Text> {
        let text = Arc::new(Text { number: self.next.fetch_add(1, Ordering::Relaxed), bytes });
        if text.bytes.len() >= LARGE {
            let (asker, at) = (asker.clone(), Instant::now());
            self.large.lock().push(LargeText { node, asker, at, text: Arc::downgrade(&text) });
        }
        text
    }

    fn recent(&self, node: VirtualNode, asker: &Asker) -> Option<Arc<Text>> {
        let mut large = self.large.lock();
        large.retain(|one| one.at.elapsed() < MOMENT && one.text.strong_count() > 0);
        large.iter().find(|one| one.node == node && one.asker == *asker)?.text.upgrade()
    }
}
