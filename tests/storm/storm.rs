//! Runs one script: sets the scene, lets the processes go, does to the mount what the script says, and compares in the end.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::actor::{self, Task};
use super::judge::{self, Times};
use super::ledger::Ledger;
use super::ops::subtree;
use super::rig::{Layer, Member, PROGRAM, State, Volume, ending_with_us, patience, program};
use super::script::{Disk, Disturbance, Kind, Script, What};

/// Where a process that is started anew finds what it is told.
pub(crate) const TASK: &str = "DLIO_STORM_TASK";

#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) kills: u64,
    pub(crate) commands: u64,
    pub(crate) lasting: u64,
    pub(crate) operations: u64,
    pub(crate) names: usize,
}

/// What is dropped first is first: nobody uses a tier that is taken away.
#[derive(Debug)]
struct Storm<'a> {
    actors: Vec<Actor>,
    commands: Vec<Running>,
    /// What is being done, and until when.
    lasting: Vec<(What, Instant)>,
    members: Vec<Member>,
    layer: Option<Layer>,
    plain: Volume,
    slow: Volume,
    fast: Vec<Volume>,
    dir: PathBuf,
    script: &'a Script,
    ledger: Ledger,
    progress: Arc<AtomicU64>,
    done: Done,
}

impl Drop for Storm<'_> {
    /// Whoever waits for a tier that hangs cannot be killed.
    fn drop(&mut self) {
        self.slow.thaws_if_frozen();
        self.layer.iter().for_each(Layer::goes_on);
    }
}

#[derive(Debug)]
struct Actor {
    process: Process,
    has_ended: bool,
    said: PathBuf,
}

/// Ends with whoever has started it.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}

/// A command of the program that somebody has given.
#[derive(Debug)]
struct Running {
    words: String,
    process: Process,
    since: Instant,
}

/// `dir` is empty, and is left to whoever made it.
pub(crate) fn run(script: &Script, dir: &Path) -> Result<Done, String> {
    let mut storm = Storm::set(script, dir)?;
    let result = storm.pass();
    result.map_err(|error| {
        storm.leave_evidence();
        let said = storm.members.iter().map(Member::said).collect::<Vec<_>>().join("\n--\n");
        format!("{error}\nthe end of the daemon's log:\n{said}")
    })?;
    Ok(std::mem::take(&mut storm.done))
}

impl<'a> Storm<'a> {
    fn set(script: &'a Script, dir: &Path) -> Result<Self, String> {
        let scene = &script.scene;
        let plain = Volume::new(dir, "plain", Disk { kind: Kind::Ext4, mib: 512 });
        let slow = Volume::new(dir, "slow", scene.slow);
        let fast: Vec<_> =
            (0..scene.members).map(|member| Volume::new(dir, &format!("fast{member}"), scene.fast)).collect();
        for (number, part) in script.actors.iter().enumerate() {
            let tops = [slow.tier(), plain.tier()].map(|top| top.join(subtree(number)));
            tops.iter().for_each(|top| fs::create_dir(top).unwrap());
            let [slow, plain] = tops;
            actor::prepare(slow, plain, &part.before).map_err(|error| format!("before the mount: {error}"))?;
        }
        let layer = scene.has_layer.then(|| Layer::new(dir, &slow.tier()));
        let tier = layer.as_ref().map_or_else(|| slow.tier(), |layer| layer.shown.clone());
        let mount = |(number, fast): (usize, &Volume)| {
            let mut member = Member::new(dir, &format!("mnt{number}"), fast.tier(), tier.clone(), &scene.options);
            member.start();
            member
        };
        let members = fast.iter().enumerate().map(mount).collect();
        fs::write(dir.join("script"), script.write()).unwrap();
        Ok(Storm {
            actors: Vec::new(),
            commands: Vec::new(),
            lasting: Vec::new(),
            members,
            layer,
            plain,
            slow,
            fast,
            dir: dir.to_owned(),
            script,
            ledger: Ledger::new(&dir.join("ledger")),
            progress: Arc::default(),
            done: Done::default(),
        })
    }

    fn pass(&mut self) -> Result<(), String> {
        self.until_all_run()?;
        self.actors = (0..self.script.actors.len()).map(|number| self.start_actor(number)).collect();
        let mut disturbances = self.script.disturbances.iter().peekable();
        while self.actors.iter().any(|actor| !actor.has_ended) {
            let operations = self.progress.load(Ordering::Relaxed);
            if let Some(next) = disturbances.next_if(|next| next.at <= operations && self.may_begin(next)) {
                self.begin(&next.what)?;
            }
            self.look()?;
            thread::sleep(Duration::from_millis(2));
        }
        self.end_all()?;
        self.judge()
    }

    /// What people look at afterwards: the daemons' logs, their log of changes, what they say, and what the slow tree has.
    fn leave_evidence(&self) {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("storm-{}", self.script.seed));
        fs::remove_dir_all(&to).ok();
        fs::create_dir_all(&to).unwrap();
        let copy = |what: &Path| Command::new("cp").arg("-a").arg(what).arg(&to).stderr(Stdio::null()).status().ok();
        copy(&self.dir.join("ledger"));
        for (member, fast) in self.members.iter().zip(&self.fast) {
            copy(&member.log);
            let name = member.point.file_name().expect("it has one").to_string_lossy().into_owned();
            let log = to.join(format!("{name}.changes"));
            let changes = fast.tier().join(".dlio-fs/log");
            Command::new("cp").arg("-a").arg(changes).arg(log).stderr(Stdio::null()).status().ok();
            for file in ["stats", "queue"].iter().filter(|_| member.state == State::Running) {
                fs::copy(member.point.join(".dlio").join(file), to.join(format!("{name}.{file}"))).ok();
            }
        }
        for (name, top) in [("slow", &self.slow), ("plain", &self.plain)] {
            let listing = File::create(to.join(format!("{name}.listing"))).unwrap();
            Command::new("find").arg(top.tier()).arg("-ls").stdout(listing).status().ok();
        }
    }

    fn start_actor(&self, part: usize) -> Actor {
        let top = match &self.script.actors[part] {
            stranger if stranger.is_stranger => self.slow.tier(),
            actor => self.members[actor.member].point.clone(),
        };
        let on_mount = top.join(subtree(part));
        let mirror = self.plain.tier().join(subtree(part));
        let (script, ledger) = (self.dir.join("script"), self.dir.join("ledger"));
        let task = serde_json::to_string(&Task { script, part, on_mount, mirror, ledger }).expect("plain data");
        let said = self.dir.join(format!("actor{part}.said"));
        let mut command = ending_with_us(std::env::current_exe().unwrap().to_str().unwrap());
        command.args(["--exact", "one_process", "--ignored", "--nocapture"]).env(TASK, task).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(File::create(&said).unwrap()).spawn().unwrap();
        let (mut out, progress) = (child.stdout.take().expect("piped"), Arc::clone(&self.progress));
        // Ends with the process.
        thread::spawn(move || {
            let mut dots = [0; 64];
            while let Ok(count @ 1..) = out.read(&mut dots) {
                progress
                    .fetch_add(dots[..count].iter().filter(|byte| **byte == b'#').count() as u64, Ordering::Relaxed);
            }
        });
        Actor { process: Process(child), has_ended: false, said }
    }

    /// What is done to a daemon needs one. A mount over a slow tier that hangs is refused, so nothing begins to hang before all run; and
    /// only one thing at a time is done to that tier.
    fn may_begin(&self, next: &Disturbance) -> bool {
        match next.what.member() {
            Some(member) => self.members[member].state == State::Running,
            None => {
                self.members.iter().all(|member| member.state == State::Running)
                    && self.lasting.iter().all(|(other, _)| other.member().is_some())
            }
        }
    }

    fn begin(&mut self, what: &What) -> Result<(), String> {
        match what {
            What::Kill(member) => {
                self.ledger.begins("kill");
                self.members[*member].kill();
                self.done.kills += 1;
            }
            What::Command(member, words, below) => self.command(*member, words, below),
            What::Paused(member, time) => {
                self.command(*member, &["pause".to_owned()], Path::new(""));
                self.lasts(what, *time);
            }
            What::ReadOnly(time) | What::Full(time) | What::Frozen(time) | What::Hung(time) => {
                self.ledger.begins(what.name());
                match (what, &self.layer) {
                    (What::ReadOnly(_), _) if self.slow.becomes_read_only() => {}
                    (What::Full(_), _) => self.slow.becomes_full(),
                    (What::Frozen(_), _) => self.slow.freezes(),
                    (What::Hung(_), Some(layer)) => layer.stops(),
                    // Somebody has a file in it open for writing; or there is nothing to stop.
                    _ => {
                        self.ledger.ended(what.name());
                        return Ok(());
                    }
                }
                self.lasts(what, *time);
            }
        }
        Ok(())
    }

    fn lasts(&mut self, what: &What, time: u64) {
        self.done.lasting += 1;
        self.lasting.push((what.clone(), Instant::now() + Duration::from_millis(time)));
    }

    fn command(&mut self, member: usize, words: &[String], below: &Path) {
        let point = &self.members[member].point;
        let path = if below.as_os_str().is_empty() { point.clone() } else { point.join(below) };
        let mut command = Command::new(PROGRAM);
        command.args(words).arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let words = format!("{words:?} {}", below.display());
        self.commands.push(Running { words, process: Process(command.spawn().unwrap()), since: Instant::now() });
        self.done.commands += 1;
    }

    /// Ends all of which this is so.
    fn end(&mut self, is_over: impl Fn(&What, Instant) -> bool) {
        let (over, go_on) =
            std::mem::take(&mut self.lasting).into_iter().partition(|(what, until)| is_over(what, *until));
        self.lasting = go_on;
        for (what, until) in over {
            match (&what, &self.layer) {
                (What::Paused(member, _), _) if self.members[*member].state == State::Running => {
                    self.command(*member, &["resume".to_owned()], Path::new(""));
                }
                // Once there is somebody to tell.
                (What::Paused(..), _) => self.lasting.push((what.clone(), until)),
                (What::ReadOnly(_), _) => self.slow.becomes_writable(),
                (What::Full(_), _) => self.slow.gets_room(),
                (What::Frozen(_), _) => self.slow.thaws(),
                (What::Hung(_), Some(layer)) => layer.goes_on(),
                _ => {}
            }
            if what.member().is_none() {
                self.ledger.ended(what.name());
            }
        }
    }

    /// At all that goes on by itself.
    fn look(&mut self) -> Result<(), String> {
        let now = Instant::now();
        self.end(|_, until| until <= now);
        if self.members.iter().any(|member| member.state == State::Down) {
            // A start over a tier that is read-only, or hangs, is refused; and that of a member over one that is full, for it has no lease.
            let is_alone = self.members.len() == 1;
            self.end(|what, _| match what {
                What::ReadOnly(_) | What::Frozen(_) | What::Hung(_) => true,
                What::Full(_) => !is_alone,
                _ => false,
            });
        }
        for member in &mut self.members {
            let former = member.state;
            match member.look()? {
                State::Down if former == State::Down => member.start(),
                State::Running if former != State::Running => self.ledger.ended("kill"),
                _ => {}
            }
        }
        for actor in self.actors.iter_mut().filter(|actor| !actor.has_ended) {
            let Some(status) = actor.process.0.try_wait().unwrap() else { continue };
            actor.has_ended = true;
            if !status.success() {
                return Err(fs::read_to_string(&actor.said).unwrap_or_default());
            }
        }
        self.look_at_commands()
    }

    fn look_at_commands(&mut self) -> Result<(), String> {
        let mut ended = Ok(());
        self.commands.retain_mut(|command| match command.process.0.try_wait().unwrap() {
            // A panic, or a signal.
            Some(status) if status.code().is_none_or(|code| !(0..=5).contains(&code)) => {
                ended = Err(format!("dlio-fs {}: {status}", command.words));
                false
            }
            Some(_) => false,
            None if command.since.elapsed() > patience() => {
                ended = Err(format!("dlio-fs {} does not end", command.words));
                false
            }
            None => true,
        });
        ended
    }

    fn until_all_run(&mut self) -> Result<(), String> {
        let is_done = |storm: &Self| {
            storm.lasting.is_empty()
                && storm.commands.is_empty()
                && storm.members.iter().all(|member| member.state == State::Running)
        };
        while !is_done(self) {
            self.look()?;
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn end_all(&mut self) -> Result<(), String> {
        self.done.operations = self.progress.load(Ordering::Relaxed);
        self.lasting.iter_mut().for_each(|(_, until)| *until = Instant::now());
        self.until_all_run()
    }

    /// Drained, unmounted, compared.
    fn judge(&mut self) -> Result<(), String> {
        for member in &self.members {
            program(&["drain"], &member.point)?;
        }
        for number in 0..self.script.actors.len() {
            let member = &self.members[self.script.actors[number].member];
            let slow = self.slow.tier().join(subtree(number));
            let view = member.point.join(subtree(number));
            self.compare(number, &slow, "drained, the slow tree and the plain directory")?;
            let times = if self.layer.is_some() { Times::None } else { Times::All };
            // What a stranger has changed is seen after a while.
            in_the_end(|| alike(&view, &slow, times, "drained, the mount and the slow tree"))?;
        }
        for member in &mut self.members {
            member.umount()?;
            member.fsck()?;
        }
        for number in 0..self.script.actors.len() {
            let slow = self.slow.tier().join(subtree(number));
            self.done.names += self.compare(number, &slow, "unmounted, the slow tree and the plain directory")?;
        }
        Ok(())
    }

    fn compare(&self, number: usize, tree: &Path, which: &str) -> Result<usize, String> {
        let times = if self.layer.is_some() { Times::None } else { Times::Set };
        let compare = || alike(tree, &self.plain.tier().join(subtree(number)), times, which);
        // What was open when it was removed has a name of the layer's own until a close has come through to it, for which nobody waits.
        if self.layer.is_some() { in_the_end(compare) } else { compare() }
    }
}

fn alike(one: &Path, other: &Path, times: Times, which: &str) -> Result<usize, String> {
    let read =
        |top: &Path| judge::read(top, times).map_err(|error| format!("{which}: reading {}: {error}", top.display()));
    let (one, other) = (read(one)?, read(other)?);
    let differences = judge::differences(&one, &other);
    if differences.is_empty() { Ok(one.len()) } else { Err(format!("{which} differ:\n{differences}")) }
}

fn in_the_end<T>(is_so: impl Fn() -> Result<T, String>) -> Result<T, String> {
    let deadline = Instant::now() + patience();
    loop {
        match is_so() {
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(100)),
            last => return last,
        }
    }
}
