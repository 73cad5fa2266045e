//! The reference: an ordinary tree in memory, and what POSIX lets happen to it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use dlio_fs::error::Errno;
use dlio_fs::tiers::disk::{Kind, NewAttr, RenameMode, Time};

use super::sim::image::{Body, Image, Shown};

pub type Id = u64;
pub const ROOT: Id = 0;

/// A directory and a name in it.
pub type Place = (Id, Vec<u8>);

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub mtime: Time,
    pub bytes: Arc<Vec<u8>>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub children: BTreeMap<Vec<u8>, Id>,
    shown: OnceCell<Shown>,
}

impl Node {
    pub fn new(kind: Kind, perm: u32, uid: u32, gid: u32) -> Self {
        Node {
            kind,
            perm,
            uid,
            gid,
            rdev: 0,
            mtime: Time::default(),
            bytes: Arc::default(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            children: BTreeMap::new(),
            shown: OnceCell::new(),
        }
    }

    fn of(body: &Body) -> Self {
        Node {
            rdev: body.rdev,
            mtime: body.mtime.unwrap_or_default(),
            bytes: body.bytes.clone(),
            target: body.target.clone(),
            xattrs: body.xattrs.clone(),
            ..Node::new(body.kind, body.perm, body.uid, body.gid)
        }
    }

    fn shown(&self) -> Shown {
        let body = || Body {
            kind: self.kind,
            perm: if self.kind == Kind::Symlink { 0o777 } else { self.perm },
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            mtime: (self.kind == Kind::File).then_some(self.mtime),
            bytes: self.bytes.clone(),
            target: self.target.clone(),
            xattrs: self.xattrs.clone(),
        };
        self.shown.get_or_init(|| Shown::new(body())).clone()
    }

    /// What a chown, or a write by an unprivileged process, leaves of the mode.
    pub fn without_privileges(&self) -> u32 {
        let perm = self.perm & !0o4000;
        if perm & 0o2010 == 0o2010 { perm & !0o2000 } else { perm }
    }

    pub fn set(&mut self, new: &NewAttr) {
        self.uid = new.uid.unwrap_or(self.uid);
        self.gid = new.gid.unwrap_or(self.gid);
        self.perm = new.perm.unwrap_or(self.perm);
        self.mtime = new.mtime.unwrap_or(self.mtime);
    }
}

/// A tree. Cheap to clone: nodes are shared until they change. Nodes without a name stay (somebody may have them open).
#[derive(Clone, Debug)]
pub struct Fs {
    nodes: BTreeMap<Id, Rc<Node>>,
}

impl Fs {
    /// The same tree; names of one file in the image are names of one node. Ids count up from the root's.
    pub fn from_image(image: &Image) -> Fs {
        let mut fs = Fs { nodes: BTreeMap::new() };
        for (id, path) in (ROOT..).zip(image.paths()) {
            let entry = image.get(path).expect("its own path");
            let id = match &entry.same_as {
                Some(first) => fs.find(first).expect("an earlier path"),
                None => {
                    fs.nodes.insert(id, Rc::new(Node::of(entry.shown.body())));
                    id
                }
            };
            if !path.is_empty() {
                let (dir, name) = fs.parent(path).expect("directories come before what is in them");
                fs.node_mut(dir).children.insert(name, id);
            }
        }
        fs
    }

    /// One node and nothing else.
    pub fn just(id: Id, node: Rc<Node>) -> Fs {
        Fs { nodes: BTreeMap::from([(id, node)]) }
    }

    pub fn image(&self) -> Image {
        let mut found = Vec::new();
        self.walk(ROOT, Vec::new(), &mut |path, id, node| found.push((path, id, node.shown())));
        Image::new(found)
    }

    fn walk(&self, id: Id, path: Vec<u8>, visit: &mut impl FnMut(Vec<u8>, Id, &Node)) {
        let node = self.node(id);
        for (name, &child) in &node.children {
            let below = if path.is_empty() { name.clone() } else { [&path, &b"/"[..], name].concat() };
            self.walk(child, below, visit);
        }
        visit(path, id, node);
    }

    /// Every path of every node; of the root, the empty one.
    pub fn paths(&self) -> Vec<(Vec<u8>, Id)> {
        let mut found = Vec::new();
        self.walk(ROOT, Vec::new(), &mut |path, id, _| found.push((path, id)));
        found
    }

    pub fn contains(&self, id: Id) -> bool {
        self.nodes.contains_key(&id)
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    pub fn shared(&self, id: Id) -> Rc<Node> {
        self.nodes[&id].clone()
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        let node = Rc::make_mut(self.nodes.get_mut(&id).expect("only known nodes are changed"));
        node.shown = OnceCell::new();
        node
    }

    pub fn insert(&mut self, id: Id, node: Rc<Node>) {
        self.nodes.insert(id, node);
    }

    pub fn largest_id(&self) -> Id {
        self.nodes.keys().next_back().copied().unwrap_or(ROOT)
    }

    pub fn child(&self, (dir, name): &Place) -> Option<Id> {
        self.nodes.get(dir)?.children.get(name).copied()
    }

    /// Sets or removes a name, whatever it was.
    pub fn put(&mut self, (dir, name): &Place, id: Option<Id>) {
        let children = &mut self.node_mut(*dir).children;
        match id {
            Some(id) => drop(children.insert(name.clone(), id)),
            None => drop(children.remove(name)),
        }
    }

    pub fn names(&self, id: Id) -> Vec<Place> {
        let of = |(&dir, node): (&Id, &Rc<Node>)| {
            let named: Vec<Place> =
                node.children.iter().filter(|(_, child)| **child == id).map(|(name, _)| (dir, name.clone())).collect();
            named
        };
        self.nodes.iter().flat_map(of).collect()
    }

    pub fn find(&self, path: &[u8]) -> Result<Id, Errno> {
        if path.is_empty() {
            return Ok(ROOT);
        }
        self.child(&self.parent(path)?).ok_or(Errno::ENOENT)
    }

    /// The directory that holds a path's last name.
    pub fn parent(&self, path: &[u8]) -> Result<Place, Errno> {
        let mut names: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
        let last = names.pop().expect("a split has a last piece");
        let mut dir = ROOT;
        for name in names {
            dir = self.child(&(dir, name.to_vec())).ok_or(Errno::ENOENT)?;
            if self.node(dir).kind != Kind::Dir {
                return Err(Errno::ENOTDIR);
            }
        }
        Ok((dir, last.to_vec()))
    }

    /// Whether `id` is `dir` or somewhere below it.
    pub fn is_below(&self, id: Id, dir: Id) -> bool {
        id == dir || self.names(id).iter().any(|(parent, _)| self.is_below(*parent, dir))
    }

    // What may be done, and what the answer is if not.

    pub fn may_make(&self, path: &[u8]) -> Result<Place, Errno> {
        let place = self.parent(path)?;
        if self.child(&place).is_some() { Err(Errno::EEXIST) } else { Ok(place) }
    }

    pub fn may_link(&self, from: &[u8], to: &[u8]) -> Result<(Id, Place), Errno> {
        let id = self.find(from)?;
        let place = self.may_make(to)?;
        if self.node(id).kind == Kind::Dir { Err(Errno::EPERM) } else { Ok((id, place)) }
    }

    pub fn may_unlink(&self, path: &[u8]) -> Result<(Id, Place), Errno> {
        let place = self.parent(path)?;
        let id = self.child(&place).ok_or(Errno::ENOENT)?;
        if self.node(id).kind == Kind::Dir { Err(Errno::EISDIR) } else { Ok((id, place)) }
    }

    pub fn may_rmdir(&self, path: &[u8]) -> Result<(Id, Place), Errno> {
        let place = self.parent(path)?;
        let id = self.child(&place).ok_or(Errno::ENOENT)?;
        match self.node(id) {
            node if node.kind != Kind::Dir => Err(Errno::ENOTDIR),
            node if !node.children.is_empty() => Err(Errno::ENOTEMPTY),
            _ => Ok((id, place)),
        }
    }

    pub fn may_rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<Move, Errno> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        let id = self.child(&from).ok_or(Errno::ENOENT)?;
        let over = self.child(&to);
        match (mode, over) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        let exchange = mode == RenameMode::Exchange;
        let is_dir = |id: Id| self.node(id).kind == Kind::Dir;
        if is_dir(id) && self.is_below(to.0, id) {
            return Err(Errno::EINVAL);
        }
        if let Some(over) = over {
            if is_dir(over) && self.is_below(from.0, over) {
                return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            match (is_dir(id), is_dir(over)) {
                _ if exchange || over == id => {}
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.node(over).children.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        Ok(Move { id, from, to, over })
    }
}

/// A rename that is allowed.
#[derive(Clone, Debug)]
pub struct Move {
    pub id: Id,
    pub from: Place,
    pub to: Place,
    pub over: Option<Id>,
}
