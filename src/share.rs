//! Each user's share of a common resource. Root and the mount's owner have no limit.

use std::collections::HashMap;

/// Whether a user may take more of a resource: while holding less than is left. So the first user who wants all of it
/// gets half, the next one a quarter, and some is always left for later ones.
pub fn allows(held: u64, left: u64) -> bool {
    held < left
}

/// How much each user holds.
#[derive(Debug, Default)]
pub struct PerUser(HashMap<u32, u64>);

impl PerUser {
    pub fn of(&self, uid: u32) -> u64 {
        self.0.get(&uid).copied().unwrap_or(0)
    }

    pub fn add(&mut self, uid: u32, amount: u64) {
        *self.0.entry(uid).or_default() += amount;
    }

    pub fn remove(&mut self, uid: u32, amount: u64) {
        let left = self.of(uid).saturating_sub(amount);
        if left > 0 {
            self.0.insert(uid, left);
        } else {
            self.0.remove(&uid);
        }
    }

    /// Each user who holds something.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.0.iter().map(|(uid, amount)| (*uid, *amount))
    }
}
