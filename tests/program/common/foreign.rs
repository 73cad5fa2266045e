//! Slow tiers that are real and not Linux's own: a directory of an SSH server (sshfs), exFAT, NTFS. Everything of theirs is in a temporary
//! directory; nothing of the system is changed.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::mount::{MntFlags, umount2};

use super::{succeeded, until};
use crate::needs::program;

/// A directory of an SSH server of its own, on 127.0.0.1.
#[derive(Debug)]
pub struct Sshfs {
    dir: tempfile::TempDir,
    server: Server,
    client: Child,
}

impl Sshfs {
    /// With the options that its users give it, and the one without which files have other numbers when the kernel has forgotten them.
    const OPTIONS: &str = "allow_other,default_permissions,reconnect,noforget";

    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("dlio-fs-test-").tempdir().unwrap();
        for name in ["tree", "shown", "etc"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let server = Server::start(dir.path());
        let mut client = Command::new("sshfs");
        client.arg("-f").arg("-F").arg(client_config(dir.path(), server.port)).args(["-o", Self::OPTIONS]);
        client.arg(format!("root@127.0.0.1:{}", dir.path().join("tree").display())).arg(dir.path().join("shown"));
        let client = client
            .env_remove("SSH_AUTH_SOCK")
            .stdin(Stdio::null())
            .stderr(File::create(dir.path().join("sshfs.log")).unwrap())
            .spawn()
            .unwrap();
        let mut sshfs = Sshfs { dir, server, client };
        let above = fs::metadata(sshfs.dir.path()).unwrap().dev();
        until("sshfs has mounted", || {
            let ended = sshfs.client.try_wait().unwrap();
            assert_eq!(ended, None, "{}{}", sshfs.server.log(), sshfs.log());
            fs::metadata(sshfs.shown()).is_ok_and(|shown| shown.dev() != above)
        });
        sshfs
    }

    /// The directory on the server.
    pub fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub fn shown(&self) -> PathBuf {
        self.dir.path().join("shown")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.beside("sshfs.log")).unwrap_or_default()
    }

    /// Something else of the server's.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Ends the connection as a network does, at the server's end; returns how many processes served it.
    pub fn cut(&self) -> usize {
        let sessions = self.server.sessions();
        sessions.iter().for_each(|pid| {
            Command::new("kill").args(["-KILL", pid]).status().unwrap();
        });
        sessions.len()
    }
}

impl Drop for Sshfs {
    fn drop(&mut self) {
        umount2(&self.shown(), MntFlags::MNT_DETACH).ok();
        self.client.kill().ok();
        self.client.wait().ok();
    }
}

fn client_config(dir: &Path, port: u16) -> PathBuf {
    let (path, place) = (dir.join("ssh_config"), dir.display());
    let text = format!(
        "Port {port}\nIdentityFile {place}/key\nIdentitiesOnly yes\nUserKnownHostsFile {place}/known\nStrictHostKeyChecking no\nLogLevel ERROR\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[derive(Debug)]
struct Server {
    process: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// In a mount name space with an `/etc` and a `/run` of its own: it wants a user and a directory that a system without SSH lacks.
    const BEGIN: &str = "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && mount --bind \"$1/etc\" /etc && exec \"$2\" -D -e -f \"$1/sshd_config\"";

    fn start(dir: &Path) -> Self {
        for key in ["host", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            succeeded(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)).output().unwrap());
        }
        let users = "root:x:0:0::/root:/bin/sh\nsshd:x:65534:65534::/run/sshd:/bin/false\n";
        fs::write(dir.join("etc/passwd"), users).unwrap();
        loop {
            // Free at this moment; another process may take it before the server does.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut server = Self::on_port(dir, port);
            let mut is_taken = false;
            until("sshd listens", || {
                is_taken = server.process.try_wait().unwrap().is_some();
                assert!(!is_taken || server.log().contains("Address already in use"), "{}", server.log());
                is_taken || TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            if !is_taken {
                return server;
            }
        }
    }

    fn on_port(dir: &Path, port: u16) -> Self {
        let place = dir.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {place}/host\nAuthorizedKeysFile {place}/key.pub\nPermitRootLogin prohibit-password\n\
             StrictModes no\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n"
        );
        fs::write(dir.join("sshd_config"), config).unwrap();
        let (sshd, log) = (program("sshd").unwrap(), dir.join("sshd.log"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", Self::BEGIN, "sshd"]).arg(dir).arg(&sshd);
        // Where it was only unpacked, a library of its own is beside it.
        if let Some(libraries) = sshd.ancestors().nth(3).map(|root| root.join("usr/lib")).filter(|dir| dir.is_dir()) {
            let below = fs::read_dir(libraries).unwrap().map(|entry| entry.unwrap().path());
            command.env("LD_LIBRARY_PATH", std::env::join_paths(below.filter(|path| path.is_dir())).unwrap());
        }
        let process = command.stdin(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Server { process, port, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The processes that serve a connection.
    fn sessions(&self) -> Vec<String> {
        let children = |pid: &str| {
            let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            listed.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let mut sessions = children(&self.process.id().to_string());
        let below: Vec<_> = sessions.iter().flat_map(|pid| children(pid)).collect();
        sessions.extend(below);
        sessions
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for pid in self.sessions() {
            Command::new("kill").args(["-KILL", &pid]).status().ok();
        }
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A file system on a loop device that a process of its own serves: also where the kernel has none of that kind.
#[derive(Debug)]
pub struct Foreign {
    dir: tempfile::TempDir,
    device: String,
}

impl Foreign {
    /// By exfat-fuse. Nobody but its owner may change what is there, or it could be no tier.
    pub fn exfat() -> Self {
        Foreign::new(&["mkfs.exfat"], "mount.exfat-fuse", "allow_other,umask=022,noforget")
    }

    /// Names that differ in case only are one name, and all files have lasting numbers.
    pub fn ntfs_without_case() -> Self {
        Foreign::new(&["mkfs.ntfs", "-F", "-q", "-Q"], "lowntfs-3g", "allow_other,permissions,ignore_case")
    }

    fn new(mkfs: &[&str], program: &str, options: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("dlio-fs-volume-").tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir(dir.path().join("tier")).unwrap();
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        succeeded(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image).output().unwrap());
        let device = succeeded(Command::new("losetup").args(["-f", "--show"]).arg(&image).output().unwrap());
        let foreign = Foreign { dir, device: device.trim().to_owned() };
        let mut mount = Command::new(program);
        mount.arg(&foreign.device).arg(foreign.tier()).args(["-o", options]).stdin(Stdio::null());
        // A process in the background, which keeps a pipe open for as long as it lives.
        assert!(mount.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success(), "{program}");
        fs::set_permissions(foreign.tier(), fs::Permissions::from_mode(0o755)).unwrap();
        foreign
    }

    /// Its root.
    pub fn tier(&self) -> PathBuf {
        self.dir.path().join("tier")
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        umount2(&self.tier(), MntFlags::MNT_DETACH).ok();
        // At the latest when the last one lets go of it.
        Command::new("losetup").args(["-d", &self.device]).stderr(Stdio::null()).status().ok();
    }
}
