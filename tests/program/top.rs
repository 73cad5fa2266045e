//! `dlio-fs top`: what it shows of a mount on which something is done, over a pipe and on a terminal, and how it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::{Mount, USER, pattern, until};
use crate::needs::{MOUNTS, needs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dlio-fs");

/// `top` over a pipe, with arguments.
struct Piped {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Piped {
    fn start(mount: &Mount, arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("top").arg(mount.root()).args(arguments);
        if !arguments.contains(&"--interval") {
            command.args(["--interval", "200ms"]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Piped { child, lines }
    }

    /// The next line; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn object(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// Reads to its end; its exit code and what it said beside the lines.
    fn ended(mut self) -> (Option<i32>, String) {
        self.lines.read_to_string(&mut String::new()).unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What was read from each tier, written to each, and drained is told, each byte in one interval.
#[test]
fn the_intervals_add_up_to_what_moved() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("old"), pattern(500_000)).unwrap());
    let mut top = Piped::start(&mount, &["--json"]);
    top.object();
    mount.put("new", pattern(700_000));
    assert_eq!(fs::read(mount.at("new")).unwrap().len() + fs::read(mount.at("old")).unwrap().len(), 1_200_000);
    mount.sync();
    let (mut moved, mut calls, mut spans) = ([0; 5], 0, 0.0);
    let names = ["read_fast", "read_slow", "written_fast", "written_slow", "drained"];
    let (mut writes, mut p99) = (0, None);
    until("all of it was told", || {
        let line = top.object();
        for (sum, name) in moved.iter_mut().zip(names) {
            *sum += line[name].as_u64().unwrap();
        }
        let written = line["operations"].as_array().unwrap().iter().find(|op| op["op"] == "write");
        writes += written.map_or(0, |op| op["bytes"].as_u64().unwrap());
        p99 = p99.or(line["write_p99"].as_f64());
        calls += line["calls"].as_u64().unwrap();
        spans += line["span"].as_f64().unwrap();
        assert_eq!(line["safety"]["safe"].as_bool().unwrap(), line["safety"]["files"] == 0, "{line}");
        moved == [700_000, 500_000, 700_000, 0, 700_000]
    });
    assert!(writes == 700_000 && p99.is_some_and(|p99| p99 > 0.0), "{writes} {p99:?}");
    let told = mount.stats_json()["mounted_for"].as_f64().unwrap();
    assert!(calls > 5 && spans > 0.0 && spans <= told, "{calls} calls in {spans} of {told} s");
}

#[test]
fn a_pipe_gets_a_line_for_each_interval_and_names_of_columns_now_and_then() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let mut top = Piped::start(&mount, &["--count", "21"]);
    let lines: Vec<String> = (0..25).map(|_| top.line().trim_end().to_owned()).collect();
    assert!(lines[1].ends_with("dirty  safe") && lines[22] == lines[0] && lines[23] == lines[1], "{lines:#?}");
    for line in lines.iter().enumerate().filter(|(at, _)| ![0, 1, 22, 23].contains(at)).map(|(_, line)| line) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert!(cells.len() == 11 && cells[10] == "yes" && cells[0].matches(':').count() == 2, "{line}");
    }
    assert_eq!((top.line(), top.ended()), (String::new(), (Some(0), String::new())));
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let mut top = Piped::start(&mount, &[]);
    assert!(!top.line().is_empty());
    let Piped { child, lines } = &mut top;
    *lines = BufReader::new(Command::new("true").stdout(Stdio::piped()).spawn().unwrap().stdout.take().unwrap());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said), (Some(0), String::new()));
}

#[test]
fn without_the_daemon_it_ends_with_the_remedy() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    let mut top = Piped::start(&mount, &["--json"]);
    top.object();
    mount.signal(Signal::SIGKILL);
    let (code, said) = top.ended();
    assert!(code == Some(1) && said.contains("is gone; mount it again with the same tiers"), "{code:?} {said}");
    let (code, said) = Piped::start(&mount, &[]).ended();
    assert!(code == Some(1) && said.contains("is gone; mount it again"), "{code:?} {said}");
    mount.kill();

    mount.start();
    let mut top = Piped::start(&mount, &["--json"]);
    top.object();
    mount.stop();
    let (code, said) = top.ended();
    assert!(code == Some(1) && said.contains("is no longer mounted; mount it again"), "{code:?} {said}");
}

/// A daemon that is replaced between two looks counts from nothing: what it tells is what came since it was mounted.
#[test]
fn a_daemon_that_is_replaced_in_between_is_no_end() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    mount.put("before", pattern(300_000));
    let mut top = Piped::start(&mount, &["--json", "--interval", "2s"]);
    top.object();
    // It has just looked. It must not find the moment without a daemon.
    let pid = Pid::from_raw(top.child.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    mount.kill();
    mount.start();
    mount.put("after", pattern(5_000));
    let written = || mount.calls("write").1;
    until("the write is counted", || written() == 5_000);
    kill(pid, Signal::SIGCONT).unwrap();
    let mut sum = 0;
    until("the new daemon's figures are told", || {
        let line = top.object();
        sum += line["written_fast"].as_u64().unwrap();
        assert!(sum <= 5_000 && line["span"].as_f64().unwrap() > 0.0, "{line}");
        sum == 5_000
    });
}

/// A terminal of 80 columns and 24 lines on which `top` runs, by script(1).
struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Shown>>,
}

/// What arrived from a terminal: every byte, and the screen that they make.
struct Shown {
    all: String,
    screen: vt100::Parser,
}

impl Terminal {
    fn start(mount: &Mount, program: &str) -> Self {
        let root = mount.root();
        let run = format!(
            "stty rows 24 cols 80; tty; echo before $(stty -g); {program} top --interval 200ms {}; code=$?; \
             echo; echo after $(stty -g); exit $code",
            root.display()
        );
        let mut command = Command::new("script");
        command.args(["-q", "-e", "-f", "-c", &run, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(Shown { all: String::new(), screen: vt100::Parser::new(24, 80, 0) }));
        let arrived = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut some) {
                let mut shown = arrived.lock().unwrap();
                shown.all.push_str(&String::from_utf8_lossy(&some[..n]));
                shown.screen.process(&some[..n]);
            }
        });
        let terminal = Terminal { child, keys, shown };
        terminal.shows("throughput,");
        terminal
    }

    /// All that was ever written to the terminal.
    fn shown(&self) -> String {
        self.shown.lock().unwrap().all.clone()
    }

    /// What stands on the screen now. Of a word that changes only the letters that differ are written, so words are looked for here.
    fn screen(&self) -> String {
        self.shown.lock().unwrap().screen.screen().contents()
    }

    fn shows(&self, word: &str) {
        until(word, || self.screen().contains(word));
    }

    /// Returns when all is drawn anew: of a key that comes in the same moment as a change of size crossterm tells with the next key.
    fn resize(&self, rows: u16, columns: u16) {
        let cleared = || self.shown().matches("\u{1b}[2J").count();
        let before = cleared();
        self.shown.lock().unwrap().screen.screen_mut().set_size(rows, columns);
        let tty = self.shown().lines().find(|line| line.starts_with("/dev/pts/")).unwrap().trim().to_owned();
        let size = [("rows", rows), ("cols", columns)].map(|(name, value)| [name.to_owned(), value.to_string()]);
        assert!(Command::new("stty").args(["-F", &tty]).args(size.as_flattened()).status().unwrap().success());
        until("it is drawn anew", || cleared() > before);
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// The pid of `top`.
    fn top(&self, mount: &Mount) -> Pid {
        let root = mount.root();
        let is_top = |pid: &str| {
            let line = fs::read(Path::new("/proc").join(pid).join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.first() == Some(&PROGRAM.as_bytes())
                && words.contains(&root.as_os_str().as_encoded_bytes())
                && words.contains(&b"top".as_slice())
        };
        let names = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Pid::from_raw(names.filter(|name| is_top(name)).find_map(|name| name.parse().ok()).unwrap())
    }

    /// The exit code; the screen and the terminal's settings are as they were.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut code = None;
        until("top ends", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        let settings = |word: &str| {
            let shown = self.shown();
            let line = shown.lines().find(|line| line.starts_with(word)).map(|line| line.trim_end().to_owned());
            line.and_then(|line| line.strip_prefix(word).map(str::to_owned))
        };
        until("all has arrived", || settings("after ").is_some());
        assert_eq!(settings("before "), settings("after "));
        let shown = self.shown();
        let (_, after) = shown.rsplit_once("\u{1b}[?1049l").expect("the other screen was left");
        assert!(shown.contains("\u{1b}[?1049h") && shown.rsplit_once("\u{1b}[?25h").is_some(), "{shown:?}");
        (code.unwrap().code(), after.to_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn on_a_terminal_keys_choose_and_it_follows_the_size() {
    needs!(MOUNTS);
    let mount = Mount::with(&[], |slow| fs::write(slow.join("old"), pattern(500_000)).unwrap());
    let mut terminal = Terminal::start(&mount, PROGRAM);
    assert_eq!(fs::read(mount.at("old")).unwrap().len(), 500_000);
    terminal.shows("/old");
    terminal.press("p");
    terminal.shows("COMMAND");
    terminal.press("o");
    terminal.shows("OPERATION");
    terminal.press("u");
    terminal.shows("CHANGE");
    let room = |word: &str| terminal.screen().contains(word);
    assert!(!room("zoom") || !room("mark"), "there is no room for all keys");
    terminal.resize(40, 120);
    terminal.shows("mark");
    terminal.resize(10, 40);
    terminal.press("?");
    terminal.shows("any key returns");
    terminal.press("xq");
    assert_eq!(terminal.ended().0, Some(0));
    let mut colourless = Terminal::start(&mount, &format!("NO_COLOR=1 {PROGRAM}"));
    colourless.press("\u{3}");
    assert!(!colourless.shown().contains("\u{1b}[38;5;"), "{:?}", colourless.shown());
    assert_eq!(colourless.ended().0, Some(0));
}

#[test]
fn the_terminal_is_put_back_however_it_ends() {
    needs!(MOUNTS);
    let mut mount = Mount::new();
    let terminal = Terminal::start(&mount, PROGRAM);
    kill(terminal.top(&mount), Signal::SIGTERM).unwrap();
    assert_eq!(terminal.ended().0, Some(130));
    let terminal = Terminal::start(&mount, PROGRAM);
    mount.signal(Signal::SIGKILL);
    let (code, after) = terminal.ended();
    assert!(code == Some(1) && after.contains("is gone; mount it again"), "{code:?} {after}");
    mount.kill();
}

/// A daemon that does not answer at all holds up neither the screen nor the keys.
#[test]
fn a_daemon_that_is_stopped_is_told_and_left() {
    needs!(MOUNTS);
    let mount = Mount::new();
    let mut terminal = Terminal::start(&mount, PROGRAM);
    mount.signal(Signal::SIGSTOP);
    terminal.shows("answer");
    terminal.press("q");
    // The process itself is not gone before a request that the daemon had taken when it was stopped is answered: the kernel waits.
    until("the screen is left", || terminal.shown().contains("\u{1b}[?1049l"));
    mount.signal(Signal::SIGCONT);
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn who_does_not_own_the_mount_sees_no_names_of_others() {
    needs!(MOUNTS, "setpriv");
    let mount = Mount::new();
    mount.put("secret-name", "x");
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let program = place.path().join("dlio-fs");
    // By cp(1): had we it open for writing, a process that another test starts now would inherit it (ETXTBSY).
    assert!(Command::new("cp").arg(PROGRAM).arg(&program).status().unwrap().success());
    let output = mount.as_user(USER, &format!("{} top --count 1 --interval 200ms .", program.display()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.lines().count() == 3, "{text} {said}");
    let mut terminal = Terminal::start(&mount, &format!("setpriv --reuid {USER} --clear-groups {}", program.display()));
    for (key, title) in [("f", "FILE"), ("p", "COMMAND"), ("u", "CHANGE")] {
        terminal.press(key);
        terminal.shows(title);
    }
    terminal.press("o");
    terminal.shows("OPERATION");
    terminal.press("q");
    assert!(!terminal.shown().contains("secret"), "{}", terminal.shown());
    assert_eq!(terminal.ended().0, Some(0));
}
